#include "octavo/nn/rms_norm.h"

namespace octavo::nn {

RMSNormImpl::RMSNormImpl(const RMSNormOptions& options) : options(options) { reset(); }

void RMSNormImpl::reset() {
  weight = register_parameter("weight", torch::ones({options.features}, options.tensor));
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "octavo::nn::RMSNorm(" << options.features << ", eps " << options.eps << ")";
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& x) {
  return rms_norm(x, weight, options.eps);
}

std::tuple<torch::Tensor, torch::Tensor> RMSNormImpl::forward_residual(
    const torch::Tensor& x, const torch::Tensor& residual) {
  return add_rms_norm(x, residual, weight, options.eps);
}

}  // namespace octavo::nn
