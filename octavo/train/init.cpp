#include "octavo/train/init.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <map>
#include <nlohmann/json.hpp>

#include "octavo/nn/parameters.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/hugging_face_config.h"
#include "octavo/train/hugging_face_weights.h"
#include "octavo/train/metrics.h"

namespace octavo::train {
namespace {

namespace fs = std::filesystem;

bool is_hugging_face(const fs::path& folder) {
  TORCH_CHECK(fs::is_directory(folder), "init: ", folder.string(),
              fs::exists(folder) ? " is no folder" : ": no such folder",
              "; give a Hugging Face folder, or a run or checkpoint of octavo");
  return fs::exists(folder / "config.json");
}

// The optimiser's masters by their parameters' names.
NamedTensors masters_of(const AdamW& optimizer) {
  constexpr std::string_view kSuffix = ".master";
  NamedTensors masters;
  for (const auto& [name, tensor] : optimizer.state())
    if (name.ends_with(kSuffix))
      masters.emplace_back(name.substr(0, name.size() - kSuffix.size()), tensor);
  return masters;
}

}  // namespace

std::vector<ConfigSetting> init_settings(const fs::path& folder) {
  TrainConfig config;
  std::string source;
  if (is_hugging_face(folder)) {
    source = (folder / "config.json").string();
    config.model = read_hugging_face_config(folder / "config.json").model;
  } else {
    source = folder.string();
    config = load_checkpoint_model(folder).config;
  }
  std::vector<ConfigSetting> settings;
  for (const ConfigKey& key : config_keys()) {
    if ((key.group == "Model" || key.group == "Mixture of experts") && key.name != "init" &&
        key.name != "preset")
      settings.push_back({key.name, key.get(config).dump(), source});
  }
  return settings;
}

NamedTensors checkpoint_values(const fs::path& folder, TrainConfig& config) {
  const CheckpointState state = load_checkpoint(folder);
  config = state.config;
  std::map<std::string, at::Tensor> optimizer(state.optimizer.begin(), state.optimizer.end());
  NamedTensors values;
  for (const auto& [name, parameter] : state.parameters) {
    const auto master = optimizer.find(name + ".master");
    values.emplace_back(name, master == optimizer.end() ? parameter : master->second);
  }
  return values;
}

std::string load_init(const fs::path& folder, models::Llama& model, AdamW& optimizer) {
  const c10::NoGradGuard no_grad;
  const NamedTensors parameters = module_parameters(*model);
  const NamedTensors masters = masters_of(optimizer);
  std::string kind = "octavo checkpoint";
  if (is_hugging_face(folder)) {
    kind = read_hugging_face_config(folder / "config.json").model_type;
    const HuggingFaceTensors tensors(folder);
    load_hugging_face_weights(tensors, kind, parameters);
    check_no_others(tensors, kind, parameters);
    load_hugging_face_weights(tensors, kind, masters);
  } else {
    TrainConfig config;
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, value] : checkpoint_values(folder, config)) values[name] = value;
    NamedTensors converted;
    std::map<std::string, at::Tensor> ours(parameters.begin(), parameters.end());
    for (const auto& [name, value] : values) {
      const auto found = ours.find(name);
      converted.emplace_back(name,
                             found == ours.end() ? value : value.to(found->second.scalar_type()));
    }
    load_parameters(*model, converted);
    for (const auto& [name, master] : masters) at::Tensor(master).copy_(values.at(name));
  }
  std::int64_t count = 0;
  for (const auto& [name, parameter] : parameters) count += parameter.numel();
  return "init        " + with_commas(count) + " parameters from " + folder.string() + " (" + kind +
         ")";
}

}  // namespace octavo::train
