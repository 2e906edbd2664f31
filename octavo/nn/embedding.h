#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace octavo::nn {

struct EmbeddingOptions {
  std::int64_t vocabulary = 0;
  std::int64_t features = 0;
  bool initialise = true;         ///< false: the weight's memory is left as it is
  at::TensorOptions tensor = {};  ///< dtype and device of the weight
};

/// y = weight[tokens]: one row for each token. The weight is called "weight" and starts normal
/// (0, 1), as torch.nn.Embedding's. Errors: a token outside [0, vocabulary) (LibTorch's message).
class EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl> {
 public:
  explicit EmbeddingImpl(const EmbeddingOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& tokens);  // (...) int64 -> (..., features)

  EmbeddingOptions options;
  torch::Tensor weight;  // (vocabulary, features)
  /// For a trainer that owns the weight: on a GPU backward adds the rows that were looked up to
  /// weight.grad() in place, instead of making a gradient of every row and adding that. Ignored on
  /// the CPU and where owns_gradient() (owned_gradient.h) says no.
  bool gradient_in_place = false;
};
TORCH_MODULE(Embedding);

}  // namespace octavo::nn
