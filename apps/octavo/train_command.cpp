#include <iostream>
#include <memory>

#include "apps/octavo/command.h"
#include "octavo/train/trainer.h"

namespace octavo::app {

void add_train_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("train", "train a Llama, dense or with experts, on text or token shards");
  struct TrainOptions {
    ConfigOptions config;
    bool overwrite = false;
  };
  const auto options = std::make_shared<TrainOptions>();
  add_config_file_option(*command, options->config);
  command->add_flag("--overwrite", options->overwrite, "remove the run that run_dir holds first");
  add_config_options(*command, options->config);
  command->callback([options] {
    const train::TrainConfig config = options->config.make();
    prepare_run_dir(config, options->overwrite ? ExistingRun::kOverwrite : ExistingRun::kRefuse);
    train::Trainer trainer(config, {.log = &std::cout});
    if (trainer.run().interrupted) throw CLI::RuntimeError(130);
  });
}

}  // namespace octavo::app
