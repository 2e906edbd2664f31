#include <memory>

#include "apps/octavo/bench_quantize.h"
#include "apps/octavo/command.h"

namespace octavo::app {

void add_bench_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "measure on this machine");
  command->require_subcommand(1);
  CLI::App* quantize = command->add_subcommand(
      "quantize", "quantising against eager torch and against a copy, in one process");
  const auto options = std::make_shared<BenchQuantizeOptions>();
  quantize->add_option("--rows", options->rows, "M, a multiple of 128")->capture_default_str();
  quantize->add_option("--columns", options->columns, "K, a multiple of 128")
      ->capture_default_str();
  quantize->add_option("--dtype", options->dtype, "bf16, fp16 or fp32")->capture_default_str();
  quantize->add_option("--threads", options->threads, "0: LibTorch's choice")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  quantize->add_option("--repetitions", options->repetitions, "timed runs; medians are printed")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  quantize->add_option("--only", options->only, "pairs whose name holds this text");
  quantize->add_flag("--json", options->json, "print one JSON object");
  quantize->callback([options] { bench_quantize(*options); });
}

}  // namespace octavo::app
