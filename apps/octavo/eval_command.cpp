#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/octavo/loaded_model.h"
#include "octavo/train/data.h"

namespace octavo::app {
namespace {

// With validation data of its own the training data need not be there.
train::TokenSource held_out(const train::TrainConfig& config) {
  return config.validation_data.empty()
             ? train::open_data(config).validation
             : train::TokenSource::open(config.validation_data, config.model.vocabulary);
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("eval", "validation loss of a checkpoint, as trained or unconverted");
  struct EvalOptions {
    ConfigOptions config;
    std::string checkpoint;
    bool json = false;
  };
  const auto options = std::make_shared<EvalOptions>();
  command->add_option("CHECKPOINT", options->checkpoint, "a checkpoint's folder or a run's")
      ->required();
  command->add_flag("--json", options->json, "print one JSON object");
  add_config_options(*command, options->config,
                     {"recipe", "flavour", "eval_recipe", "train_data", "validation_data",
                      "validation_fraction", "batch", "sequence", "validation_batches", "threads"});
  command->callback([options] {
    LoadedModel loaded = load_model(options->checkpoint, options->config);
    const train::TrainConfig& config = loaded.config;
    const train::ValidationBatches batches(held_out(config), {.batch = config.batch,
                                                              .sequence = config.sequence,
                                                              .vocabulary = config.model.vocabulary,
                                                              .limit = config.validation_batches});
    const double loss = train::validation_loss(loaded.prepared.model, batches);
    TORCH_CHECK(std::isfinite(loss), "validation loss: ", loss, " at step ", loaded.step, " of ",
                options->checkpoint,
                "; its training diverged: give an older checkpoint, or train again with a lower "
                "lr");
    if (options->json) {
      std::cout << nlohmann::ordered_json({{"step", loaded.step},
                                           {"precision", loaded.precision},
                                           {"validation_loss", loss}})
                       .dump()
                << std::endl;
    } else {
      std::cout << "step " << loaded.step << "  " << loaded.precision << "  validation loss "
                << fixed(loss, 6) << " nats per token" << std::endl;
    }
  });
}

}  // namespace octavo::app
