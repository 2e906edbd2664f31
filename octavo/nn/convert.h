#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "octavo/nn/linear.h"

namespace octavo::nn {

struct ConvertOptions {
  Recipe recipe = {};
  /// Asked for every linear that filter_fqns leaves; false keeps it in high precision.
  std::function<bool(const LinearImpl&, const std::string& fqn)> filter = {};
  /// Linears whose name contains one of these stay in high precision. Matched as substrings of our
  /// own (Hugging Face's) name and of torchtitan_name().
  std::vector<std::string> filter_fqns = {};
  bool auto_filter_small = false;  ///< leave linears for which is_small() holds
  bool allow_unmatched = false;    ///< a filter_fqns entry that matches nothing is no error
};

struct ConvertedLinear {
  std::string fqn;
  bool converted = false;
  std::string reason;  ///< why not, empty when converted
};

/// Sets the recipe of every octavo::nn::Linear below (and including) `module`, post-order, in
/// place. Parameters stay the tensors they are, so tied weights stay tied. Returns one entry per
/// linear; a module registered twice counts once, under its first name.
/// Errors, before anything is changed: nothing would be converted, a filter_fqns entry matches no
/// linear, a foreign torch::nn::Linear that no filter leaves out (it cannot be swapped in C++).
std::vector<ConvertedLinear> convert_to_float8_training(torch::nn::Module& module,
                                                        const ConvertOptions& options);

/// A linear's name as torchtitan's Llama has it: "model.layers.0.self_attn.q_proj" ->
/// "layers.0.attention.wq", "model.layers.0.mlp.down_proj" -> "layers.0.feed_forward.w2",
/// "lm_head" -> "output". Parts without a counterpart stay.
std::string torchtitan_name(const std::string& fqn);

/// Whether auto_filter_small leaves a linear of these sizes in high precision: a side below 64, or
/// fewer than 256 x 256 weights. These thresholds are a guess, and a low one: on an H200 2048 x
/// 2048 does not gain yet with 4096 tokens (docs/benchmarks/2026-11-29-linear-h200.md), on the CPU
/// no size does (docs/experiments/2026-11-29-small-linears.md). Where it ends depends on the
/// tokens, which are not known here.
bool is_small(std::int64_t in_features, std::int64_t out_features);

}  // namespace octavo::nn
