#include <ATen/ops/from_blob.h>

#include <iostream>
#include <limits>
#include <memory>

#include "apps/octavo/loaded_model.h"
#include "octavo/models/generate.h"

namespace octavo::app {
namespace {

constexpr std::int64_t kBytes = 256;  // a vocabulary of bytes: prompt and output are text

struct GenerateOptions {
  ConfigOptions config;
  std::string checkpoint;
  std::string prompt = "\n";
  std::vector<std::string> prompt_tokens;
  models::GenerateOptions generate;
};

std::vector<std::int64_t> prompt_of(const GenerateOptions& options, std::int64_t vocabulary) {
  std::vector<std::int64_t> tokens;
  for (const std::string& token : options.prompt_tokens)
    tokens.push_back(parse_number<std::int64_t>("--prompt-tokens", token, 0, vocabulary - 1));
  if (tokens.empty()) {
    TORCH_CHECK(vocabulary == kBytes, "--prompt: the model's vocabulary is ", vocabulary,
                " tokens, not bytes; give --prompt-tokens 1,2,3");
    TORCH_CHECK(!options.prompt.empty(), "--prompt: expected at least one byte of text");
    for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
  }
  return tokens;
}

void generate(GenerateOptions& options) {
  LoadedModel loaded = load_model(options.checkpoint, options.config);
  const std::int64_t vocabulary = loaded.config.model.vocabulary;
  std::vector<std::int64_t> tokens = prompt_of(options, vocabulary);
  const bool text = vocabulary == kBytes;
  const auto print = [text](std::int64_t token) {
    if (text) {
      std::cout << static_cast<char>(token) << std::flush;
    } else {
      std::cout << token << ' ' << std::flush;
    }
  };
  for (const std::int64_t token : tokens) print(token);
  options.generate.on_tokens = [&](const at::Tensor& next) { print(next.item<std::int64_t>()); };
  if (options.generate.context == 0) options.generate.context = loaded.config.sequence;
  models::generate(
      *loaded.prepared.model,
      at::from_blob(tokens.data(), {1, static_cast<std::int64_t>(tokens.size())}, at::kLong)
          .to(loaded.prepared.device, at::kLong, /*non_blocking=*/false, /*copy=*/true),
      options.generate);
  std::cout << std::endl;
}

}  // namespace

void add_generate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "continue a prompt with a checkpoint");
  const auto options = std::make_shared<GenerateOptions>();
  options->generate.new_tokens = 256;
  options->generate.temperature = 0.8;
  command->add_option("CHECKPOINT", options->checkpoint, "a checkpoint's folder or a run's")
      ->required();
  CLI::Option* prompt =
      command->add_option("--prompt", options->prompt, "text to continue [a new line]");
  command->add_option("--prompt-tokens", options->prompt_tokens, "tokens to continue: 1,2,3")
      ->delimiter(',')
      ->type_name("LIST")
      ->excludes(prompt);
  models::GenerateOptions& generating = options->generate;
  constexpr std::int64_t kMany = 1000000000;
  add_number_option<std::int64_t>(*command, "--tokens", generating.new_tokens, 0, kMany,
                                  "tokens to add");
  add_number_option<double>(*command, "--temperature", generating.temperature, 0.0, 1e6,
                            "of sampling; 0: always the most likely token");
  add_number_option<std::int64_t>(*command, "--top-k", generating.top_k, 0, kMany,
                                  "sample among the k most likely; 0: all");
  add_number_option<std::uint64_t>(*command, "--seed", generating.seed, 0,
                                   std::numeric_limits<std::uint64_t>::max(),
                                   "equal seeds give equal texts");
  add_number_option<std::int64_t>(*command, "--context", generating.context, 0, kMany,
                                  "tokens looked back on; 0: the sequence trained on");
  add_config_options(*command, options->config, {"recipe", "flavour", "eval_recipe", "threads"});
  command->callback([options] { generate(*options); });
}

}  // namespace octavo::app
