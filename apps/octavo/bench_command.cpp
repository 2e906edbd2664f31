#include <memory>

#include "apps/octavo/bench.h"
#include "apps/octavo/bench_step.h"
#include "apps/octavo/command.h"

namespace octavo::app {
namespace {

CLI::App* add_benchmark(CLI::App& command, const char* name, const char* help, const char* shape,
                        const std::shared_ptr<BenchOptions>& options,
                        void (*measure)(const BenchOptions&)) {
  CLI::App* sub = command.add_subcommand(name, help);
  sub->add_option("--device", options->device, "cpu, or cuda in a build of the preset cuda")
      ->capture_default_str();
  sub->add_option("--shapes", options->shapes,
                  std::string(shape) + ", several by commas; the default depends on the device")
      ->delimiter(',')
      ->type_name("LIST");
  add_number_option<int>(*sub, "--threads", options->threads, 0, train::kMostThreads,
                         "of the CPU; 0: LibTorch's choice");
  add_number_option<int>(*sub, "--repetitions", options->repetitions, 1, 1000000,
                         "timed samples; medians are printed");
  sub->add_option_function<std::string>(
         "--json", [options](const std::string& path) { options->json = path; },
         "write the figures to FILE as JSON; without FILE, print them instead of the table")
      ->type_name("[FILE]")
      ->expected(0, 1);
  sub->callback([options, measure] { measure(*options); });
  return sub;
}

void add_step_benchmark(CLI::App& command) {
  const auto options = std::make_shared<BenchStepOptions>();
  CLI::App* sub = command.add_subcommand(
      "step", "whole training steps of a preset in BF16 and under each recipe, in one process");
  add_config_file_option(*sub, options->config);
  sub->add_option("--recipes", options->recipes,
                  "recipes beside high_precision, separated by commas outside brackets "
                  "[tensorwise,rowwise,rowwise_with_gw_hp]")
      ->type_name("LIST");
  add_number_option<int>(*sub, "--rounds", options->rounds, 1, 1000, "of all recipes in turn");
  add_number_option<int>(*sub, "--timed-steps", options->steps, 1, 100000,
                         "steps timed in a round; medians are printed");
  add_number_option<int>(*sub, "--warm-up", options->warm_up, 1, 100000,
                         "steps before them in each round");
  sub->add_option_function<std::string>(
         "--micro-batches",
         [options](const std::string& text) {
           options->config.settings.push_back(train::setting_from_text("accumulation", text));
         },
         "of a step; the trainer's accumulation")
      ->type_name("INTEGER");
  sub->add_flag("--breakdown", options->breakdown,
                "a step's time by kind of kernel, and its launches");
  sub->add_flag("--unfused", options->unfused,
                "each recipe also with fusion false; with --breakdown, the share of FP8's overhead "
                "that fusion recovers");
  sub->add_option_function<std::string>(
         "--json", [options](const std::string& path) { options->json = path; },
         "write the figures to FILE as JSON; without FILE, print them instead of the table")
      ->type_name("[FILE]")
      ->expected(0, 1);
  std::vector<std::string> keys;
  for (const train::ConfigKey& key : train::config_keys()) {
    const bool sizes = key.group == "Model" || key.group == "Mixture of experts";
    if (sizes || (key.group == "Precision" && key.name != "recipe") || key.name == "batch" ||
        key.name == "sequence" || key.name == "lr" || key.name == "clip_norm" ||
        key.name == "threads") {
      keys.push_back(key.name);
    }
  }
  add_config_options(*sub, options->config, keys);
  sub->callback([options] { bench_step(*options); });
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "measure on this machine");
  command->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  CLI::App* quantize = add_benchmark(
      *command, "quantize", "quantising against eager torch and against a copy, in one process",
      "MxK in multiples of 128", options, &bench_quantize);
  quantize->add_option("--dtype", options->dtype, "bf16, fp16 or fp32")->capture_default_str();
  quantize->add_option("--only", options->only, "layouts whose name holds this text");

  options = std::make_shared<BenchOptions>();
  CLI::App* gemm = add_benchmark(*command, "gemm", "FP8 products against BF16's, in one process",
                                 "MxKxN", options, &bench_gemm);
  gemm->add_option("--only", options->only, "pairs of operands whose name holds this text");

  options = std::make_shared<BenchOptions>();
  CLI::App* linear = add_benchmark(*command, "linear",
                                   "a linear's forward and backward against BF16's, in one process",
                                   "MxKxN", options, &bench_linear);
  linear
      ->add_option("--recipes,--recipe", options->recipes,
                   "recipes, separated by commas outside brackets [all five]")
      ->type_name("LIST");

  options = std::make_shared<BenchOptions>();
  CLI::App* moe =
      add_benchmark(*command, "moe",
                    "experts' forward and backward against BF16's grouped products, in one process",
                    "MxDxFxE", options, &bench_moe);
  moe->add_option("--recipes,--recipe", options->recipes,
                  "recipes, separated by commas outside brackets [all but tensorwise]")
      ->type_name("LIST");
  add_number_option<int>(*moe, "--micro-batches", options->micro_batches, 1, 1024,
                         "passes that share the quantised weights and sum their gradients");
  moe->add_flag("--even", options->even_groups, "groups of equal size instead of uneven ones");
  moe->add_flag("--breakdown", options->breakdown,
                "list the kernels of one step (on the CPU: operators), their times and launches");
  add_step_benchmark(*command);
}

}  // namespace octavo::app
