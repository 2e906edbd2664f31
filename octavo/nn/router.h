#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "octavo/nn/linear.h"

namespace octavo::nn {

/// What turns a token's logits into the experts' scores.
enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid };

/// What keeps tokens from crowding into few experts.
enum class LoadBalance : std::uint8_t {
  kNone,
  kLoss,  ///< an auxiliary loss: balance_rate * E / (k M) * sum over e of tokens[e] * mean score[e]
  kBias,  ///< a bias of each expert's, for the choice alone, moved after each step (DeepSeek-V3)
};

struct RouterOptions {
  std::int64_t features = 0;  ///< D
  std::int64_t experts = 0;   ///< E
  std::int64_t top_k = 1;     ///< k, at most E
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = false;  ///< the k weights of a token are divided by their sum
  double scale = 1.0;      ///< and multiplied with this (routed scaling)
  LoadBalance balance = LoadBalance::kNone;
  double balance_rate = 1e-3;  ///< of the loss, or what the bias moves by in a step
  bool initialise = true;      ///< false: the gate's memory is left as it is
  at::TensorOptions tensor = {};
};

/// What a router decides for M tokens.
struct Routing {
  torch::Tensor weights;  // (M, k) fp32, differentiable
  torch::Tensor experts;  // (M, k) int64: the token's experts, best first
  /// Scalar fp32: the auxiliary loss, balance_rate included; 0 without one. It is balance_rate
  /// where every expert has as many tokens as the others, E / k times that where k have them all.
  torch::Tensor aux_loss;
};

/// Token choice: every token goes to the k experts with its highest scores.
///   scores = softmax(gate . x) over the experts, or sigmoid
///   experts = the k largest of scores (+ expert_bias, with kBias)
///   weights = scores[experts] (/ their sum) * scale
/// DeepSeek's is softmax, or sigmoid with normalise and a bias; Llama 4's sigmoid with k = 1.
/// Scores are computed in fp32, the gate's product in the model's dtype; it is never converted to
/// FP8. For the loss the scores of a token are divided by their sum.
class RouterImpl : public torch::nn::Module {
 public:
  /// Errors: k outside [1, E].
  explicit RouterImpl(const RouterOptions& options);

  Routing forward(const torch::Tensor& x);  // (M, D)

  /// Adds to what update_bias() looks at, and load(): of each forward pass that is trained on.
  void record(const torch::Tensor& tokens_per_expert);  // (E) int64
  /// After an optimiser's step: every expert with fewer tokens than the mean since the last call
  /// has its bias raised by balance_rate, every one with more lowered (kBias only), all times
  /// `taken` (a scalar on the device: 0 where the optimiser took no step; undefined: 1). Forgets
  /// the counts.
  void update_bias(const torch::Tensor& taken = {});
  /// Forgets the counts: those of a step that was left unfinished.
  void forget_load() { load_.reset(); }
  /// Tokens of each expert since they were forgotten last: (E) int64, on the device.
  const torch::Tensor& load() const { return load_; }

  RouterOptions options;
  Linear gate{nullptr};  // "gate": (E, D)
  /// (E) fp32, a parameter without gradient, so that it is saved with the others; kBias only.
  torch::Tensor expert_bias;

 private:
  torch::Tensor load_;  // (E) int64
};
TORCH_MODULE(Router);

}  // namespace octavo::nn
