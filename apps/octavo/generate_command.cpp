#include <ATen/ops/from_blob.h>

#include <iostream>
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
  std::vector<std::int64_t> prompt_tokens;
  models::GenerateOptions generate;
};

std::vector<std::int64_t> prompt_of(const GenerateOptions& options, std::int64_t vocabulary) {
  std::vector<std::int64_t> tokens = options.prompt_tokens;
  if (tokens.empty()) {
    TORCH_CHECK(vocabulary == kBytes, "--prompt: the model's vocabulary is ", vocabulary,
                " tokens, not bytes; give --prompt-tokens 1,2,3");
    TORCH_CHECK(!options.prompt.empty(), "--prompt: expected at least one byte of text");
    for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
  }
  for (const std::int64_t token : tokens)
    TORCH_CHECK(token >= 0 && token < vocabulary, "--prompt-tokens: expected tokens below ",
                vocabulary, ", got ", token);
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
  command->add_option("--prompt", options->prompt, "text to continue [a new line]");
  command->add_option("--prompt-tokens", options->prompt_tokens, "tokens to continue: 1,2,3")
      ->delimiter(',');
  command->add_option("--tokens", options->generate.new_tokens, "tokens to add")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--temperature", options->generate.temperature,
                   "of sampling; 0: always the most likely token")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-k", options->generate.top_k, "sample among the k most likely; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", options->generate.seed, "equal seeds give equal texts")
      ->capture_default_str();
  command
      ->add_option("--context", options->generate.context,
                   "tokens looked back on; 0: the sequence trained on")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  add_config_options(*command, options->config, {"recipe", "flavour", "eval_recipe", "threads"});
  command->callback([options] { generate(*options); });
}

}  // namespace octavo::app
