#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "octavo/nn/experts.h"
#include "octavo/nn/linear.h"

namespace octavo::nn {

/// Layers are octavo::nn::Linear and octavo::nn::Experts (one layer each, whatever the number of
/// its experts). Names are matched as substrings of our own (Hugging Face's) name and of
/// torchtitan_name(): "experts" is the experts of every block, "router.gate", "wk", "output" what
/// torchtitan calls so. Dense layers alone: filter_fqns {"experts"}; experts alone: select_fqns
/// {"experts"}.
struct ConvertOptions {
  Recipe recipe = {};
  /// Asked for every layer that the names below leave; false keeps it in high precision.
  std::function<bool(const torch::nn::Module&, const std::string& fqn)> filter = {};
  /// Layers whose name contains one of these stay in high precision.
  std::vector<std::string> filter_fqns = {};
  /// Where not empty, layers whose name contains none of these stay in high precision too.
  std::vector<std::string> select_fqns = {};
  bool auto_filter_small = false;  ///< leave layers for which is_small() holds
  bool allow_unmatched = false;    ///< an entry of either list that matches nothing is no error
};

struct ConvertedLinear {
  std::string fqn;
  bool converted = false;
  std::string reason;  ///< why not, empty when converted
};

/// Sets the recipe of every octavo::nn::Linear and octavo::nn::Experts below (and including)
/// `module`, post-order, in place. Parameters stay the tensors they are, so tied weights stay tied.
/// Returns one entry per layer; a module registered twice counts once, under its first name. A
/// layer that has a recipe already gets the new one where it is chosen and keeps its own where not:
/// dense layers and experts can be converted one after the other. A linear made with
/// LinearOptions::high_precision (a router's gate) is left alone and its entry says so.
/// Errors, before anything is changed: nothing would be converted, an entry of the lists matches no
/// layer, tensorwise for experts (they take rowwise), a foreign torch::nn::Linear that nothing
/// leaves out (it cannot be swapped in C++).
std::vector<ConvertedLinear> convert_to_float8_training(torch::nn::Module& module,
                                                        const ConvertOptions& options);

/// A layer's name as torchtitan's Llama has it: "model.layers.0.self_attn.q_proj" ->
/// "layers.0.attention.wq", "model.layers.0.mlp.down_proj" -> "layers.0.feed_forward.w2",
/// "lm_head" -> "output". Experts and routers have torchtitan's names already
/// ("model.layers.0.moe.experts" -> "layers.0.moe.experts"). Parts without a counterpart stay.
std::string torchtitan_name(const std::string& fqn);

/// Whether auto_filter_small leaves a linear (or experts) of these sizes in high precision: a side
/// below 64, or fewer than 256 x 256 weights. These thresholds are a guess, and a low one: on an
/// H200 2048 x 2048 does not gain yet with 4096 tokens (docs/benchmarks/2026-11-29-linear-h200.md),
/// on the CPU no size does (docs/experiments/2026-11-29-small-linears.md). Where it ends depends on
/// the tokens, which are not known here.
bool is_small(std::int64_t in_features, std::int64_t out_features);

}  // namespace octavo::nn
