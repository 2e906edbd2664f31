#include "apps/octavo/loaded_model.h"

#include <ATen/Parallel.h>

#include "octavo/train/checkpoint.h"

namespace octavo::app {

LoadedModel load_model(const std::string& path, const ConfigOptions& options) {
  const train::CheckpointState state = train::load_checkpoint_model(path);
  LoadedModel loaded;
  loaded.config = options.make(train::settings_of(state.config, path));
  loaded.step = state.step;
  if (loaded.config.eval_recipe == "high_precision") {
    loaded.config.recipe = "high_precision";
    loaded.config.flavour = "auto";
  }
  if (loaded.config.threads > 0) at::set_num_threads(static_cast<int>(loaded.config.threads));
  loaded.prepared = train::prepare_model(loaded.config);
  train::load_parameters(*loaded.prepared.model, state.parameters);
  loaded.precision = loaded.prepared.recipe_string();
  if (loaded.prepared.recipe) loaded.precision += ", " + loaded.prepared.flavour();
  return loaded;
}

}  // namespace octavo::app
