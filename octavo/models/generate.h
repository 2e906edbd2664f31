#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "octavo/models/llama.h"

namespace octavo::models {

struct GenerateOptions {
  std::int64_t new_tokens = 128;  ///< how many are added to the prompt
  /// Logits are divided by it before sampling; 0: always the most likely token (the first of
  /// equals), and no random numbers are drawn.
  double temperature = 1.0;
  std::int64_t top_k = 0;  ///< sample among the k most likely (ties with the k-th too); 0: all
  std::uint64_t seed = 0;  ///< equal seeds give equal texts
  /// Positions a token may look back on, itself included; 0: max_sequence. When that many are
  /// held, the older half is forgotten and the rest read again from position 0. Give the length a
  /// model was trained on, or longer texts run into positions it has never seen.
  std::int64_t context = 0;
  /// Called with each step's tokens (B) as they come.
  std::function<void(const at::Tensor&)> on_tokens = {};
};

/// Continues each of the prompts. prompt: (B, T) int64, T >= 1; returns (B, T + new_tokens) int64
/// on the prompt's device. Runs without autograd, with a key-value cache, and leaves the global
/// random state alone. Errors: a negative option, a prompt without tokens, logits that are not
/// finite.
at::Tensor generate(LlamaImpl& model, const at::Tensor& prompt, const GenerateOptions& options);

/// One token for each row of logits (B, V) by the options' rule: (B) int64.
at::Tensor sample(const at::Tensor& logits, const GenerateOptions& options, at::Generator& random);

}  // namespace octavo::models
