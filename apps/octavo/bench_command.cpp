#include <memory>

#include "apps/octavo/bench.h"
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
}

}  // namespace octavo::app
