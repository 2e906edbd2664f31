#include "octavo/nn/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

namespace octavo::nn {
namespace {

at::ScalarType compute_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// ATen's rms_norm is a composite on the CPU: its backward walks a chain of five elementwise
// operations. With n = x r, the gradients need only g * x: both sums over it are matrix-vector
// products.
//   r  = 1 / sqrt(mean(x^2) + eps)          (M)
//   dw = sum over rows of g * x * r        = r . (g * x)
//   dx = r * (g * w) - x * r^3 / D * sum over columns of g * x * w
class RMSNormFunction : public torch::autograd::Function<RMSNormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w, double eps) {
    const auto type = compute_type(x);
    const at::Tensor x_MD = x.reshape({-1, w.size(0)}).to(type);
    const at::Tensor r_M1 = x_MD.square().mean(1, /*keepdim=*/true).add_(eps).rsqrt_();
    at::Tensor y = x_MD.mul(r_M1).mul_(w.to(type));
    context->save_for_backward({x, w, r_M1});
    return y.to(x.scalar_type()).view(x.sizes());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &r_M1 = saved[2];
    const auto type = compute_type(x);
    const std::int64_t features = w.size(0);
    const at::Tensor g_MD = gradients[0].reshape({-1, features}).to(type);
    const at::Tensor x_MD = x.reshape({-1, features}).to(type);
    const at::Tensor w_D = w.to(type);
    const at::Tensor gx_MD = g_MD * x_MD;

    at::Tensor dx, dw;
    if (context->needs_input_grad(0)) {
      const at::Tensor c_M1 = gx_MD.mv(w_D).unsqueeze(1).mul_(r_M1.pow(3)).div_(features);
      dx = (g_MD * w_D).mul_(r_M1).addcmul_(x_MD, c_M1, -1).to(x.scalar_type()).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      dw = gx_MD.t().mv(r_M1.squeeze(1)).to(w.scalar_type());
    }
    return {dx, dw, at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w, double eps) {
  TORCH_CHECK(w.dim() == 1 && x.dim() >= 1 && x.size(-1) == w.size(0), "rms_norm: x is ", x.sizes(),
              " and w is ", w.sizes(),
              "; w must be one-dimensional and as long as x's last dimension");
  return RMSNormFunction::apply(x, w, eps);
}

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

}  // namespace octavo::nn
