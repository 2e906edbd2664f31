#include "octavo/nn/embedding.h"

namespace octavo::nn {

EmbeddingImpl::EmbeddingImpl(const EmbeddingOptions& options) : options(options) { reset(); }

void EmbeddingImpl::reset() {
  weight = register_parameter("weight",
                              torch::empty({options.vocabulary, options.features}, options.tensor));
  torch::NoGradGuard no_grad;
  weight.normal_();
}

void EmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "octavo::nn::Embedding(" << options.vocabulary << ", " << options.features << ")";
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& tokens) {
  return at::embedding(weight, tokens);
}

}  // namespace octavo::nn
