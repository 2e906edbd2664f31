#include "octavo/ops/rms_norm.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/operands.h"
#include "octavo/ops/rms_norm_ops.h"

namespace octavo::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType compute_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

RmsNormResult call_rms_norm_forward(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                    const at::Tensor& w, double eps) {
  static const auto op = find_operator<decltype(call_rms_norm_forward)>("octavo::rms_norm_forward");
  return op.call(x, residual, w, eps);
}

std::tuple<at::Tensor, at::Tensor> call_rms_norm_backward(const at::Tensor& dy,
                                                          const std::optional<at::Tensor>& dh,
                                                          const at::Tensor& h, const at::Tensor& w,
                                                          const at::Tensor& rstd, bool need_dx,
                                                          bool need_dw) {
  static const auto op =
      find_operator<decltype(call_rms_norm_backward)>("octavo::rms_norm_backward");
  return op.call(dy, dh, h, w, rstd, need_dx, need_dw);
}

RmsNormResult rms_norm_forward_meta(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                    const at::Tensor& w, double eps) {
  check_rms_norm(x, residual, w, eps);
  std::vector<c10::SymInt> rows = x.sym_sizes().vec();
  rows.pop_back();
  return {
      residual ? at::empty_symint(x.sym_sizes(), x.options()) : at::empty_symint({0}, x.options()),
      at::empty_symint(x.sym_sizes(), x.options()),
      at::empty_symint(rows, x.options().dtype(compute_type(x)))};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& dy,
                                                          const std::optional<at::Tensor>&,
                                                          const at::Tensor&, const at::Tensor& w,
                                                          const at::Tensor&, bool need_dx,
                                                          bool need_dw) {
  return {
      need_dx ? at::empty_symint(dy.sym_sizes(), dy.options())
              : at::empty_symint({0}, dy.options()),
      need_dw ? at::empty_symint(w.sym_sizes(), w.options()) : at::empty_symint({0}, w.options())};
}

// Outputs (h, y), or y alone where there is no residual.
class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& residual, const at::Tensor& w,
                               double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [h, y, rstd] = call_rms_norm_forward(x, residual, w, eps);
    context->save_for_backward({residual ? h : x, w, rstd});
    // A gradient of h that nothing asked for is no matrix of zeros to read.
    context->set_materialize_grads(false);
    if (residual) return {h, y};
    return {y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const RmsNormGradients made = rms_norm_gradients(*context, gradients);
    const auto wanted = [](const at::Tensor& gradient) {
      return gradient.defined() && at::GradMode::is_enabled()
                 ? without_derivative("rms_norm's backward", gradient)
                 : gradient;
    };
    return {wanted(made.x), wanted(made.residual), wanted(made.w), at::Tensor()};
  }
};

}  // namespace

RmsNormGradients rms_norm_gradients(const AutogradContext& context,
                                    const variable_list& gradients) {
  const variable_list saved = context.get_saved_variables();
  const bool adds = gradients.size() == 2;
  const at::Tensor &dh = adds ? gradients[0] : at::Tensor(), &dy = gradients.back();
  const bool need_x = context.needs_input_grad(0);
  const bool need_residual = adds && context.needs_input_grad(1);
  // An absent residual is no input of autograd's: w comes right after x then.
  const bool need_w = context.needs_input_grad(adds ? 2 : 1);
  at::Tensor dx = dh, dw;
  if (dy.defined()) {
    at::AutoDispatchBelowADInplaceOrView guard;
    std::tie(dx, dw) =
        call_rms_norm_backward(dy, dh.defined() ? std::optional<at::Tensor>(dh) : std::nullopt,
                               saved[0], saved[1], saved[2], need_x || need_residual, need_w);
  }
  return {.x = need_x ? dx : at::Tensor(),
          .residual = need_residual ? dx : at::Tensor(),
          .w = need_w ? dw : at::Tensor()};
}

void check_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                    const at::Tensor& w, double eps) {
  TORCH_CHECK(std::isfinite(eps) && eps >= 0,
              "rms_norm: eps: expected a finite number, 0 or more, ", "got ", eps,
              "; models have 1e-6 or 1e-5");
  TORCH_CHECK(w.dim() == 1 && x.dim() >= 1 && x.sym_size(-1) == w.sym_size(0), "rms_norm: x is ",
              x.sym_sizes(), " and w is ", w.sym_sizes(),
              "; w must be one-dimensional and as long as x's last dimension");
  TORCH_CHECK(!residual || (residual->sym_sizes() == x.sym_sizes() &&
                            residual->scalar_type() == x.scalar_type()),
              "add_rms_norm: x is ", x.scalar_type(), " ", x.sym_sizes(), " and residual ",
              residual ? residual->scalar_type() : x.scalar_type(), " ",
              residual ? residual->sym_sizes() : x.sym_sizes(),
              "; they must be alike, convert or reshape one");
  check_one_device("rms_norm", {x, residual.value_or(at::Tensor()), w});
}

// ATen's rms_norm is a composite on the CPU: its backward walks a chain of five elementwise
// operations. With n = h r, the gradients need only g * h: both sums over it are matrix-vector
// products.
//   r  = 1 / sqrt(mean(h^2) + eps)          (M)
//   dw = sum over rows of g * h * r        = r . (g * h)
//   dx = r * (g * w) - h * r^3 / D * sum over columns of g * h * w
RmsNormResult rms_norm_composite(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                 const at::Tensor& w, double eps) {
  check_rms_norm(x, residual, w, eps);
  const at::Tensor h = residual ? x + *residual : x;
  const auto type = compute_type(h);
  const at::Tensor h_MD = h.reshape({-1, w.size(0)}).to(type);
  const at::Tensor r_M1 = h_MD.square().mean(1, /*keepdim=*/true).add_(eps).rsqrt_();
  const at::Tensor y = h_MD.mul(r_M1).mul_(w.to(type));
  std::vector<std::int64_t> rows = x.sizes().vec();
  rows.pop_back();
  return {residual ? h : at::empty({0}, x.options()), y.to(x.scalar_type()).view(x.sizes()),
          r_M1.view(rows)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_composite(
    const at::Tensor& dy, const std::optional<at::Tensor>& dh, const at::Tensor& h,
    const at::Tensor& w, const at::Tensor& rstd, bool need_dx, bool need_dw) {
  const auto type = compute_type(h);
  const std::int64_t features = w.size(0);
  const at::Tensor g_MD = dy.reshape({-1, features}).to(type);
  const at::Tensor h_MD = h.reshape({-1, features}).to(type);
  const at::Tensor r_M1 = rstd.reshape({-1, 1});
  const at::Tensor w_D = w.to(type);
  const at::Tensor gh_MD = g_MD * h_MD;
  at::Tensor dx = at::empty({0}, dy.options()), dw = at::empty({0}, w.options());
  if (need_dx) {
    const at::Tensor c_M1 = gh_MD.mv(w_D).unsqueeze(1).mul_(r_M1.pow(3)).div_(features);
    dx = (g_MD * w_D).mul_(r_M1).addcmul_(h_MD, c_M1, -1).to(h.scalar_type()).view(h.sizes());
    if (dh) dx = dx.add_(*dh);
  }
  if (need_dw) dw = gh_MD.t().mv(r_M1.squeeze(1)).to(w.scalar_type());
  return {dx, dw};
}

RmsNormOperand rms_norm_operand(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                const at::Tensor& w, double eps, const OperandSpec& spec,
                                bool keep_y) {
#if OCTAVO_WITH_CUDA
  if (x.is_cuda()) return rms_norm_operand_cuda(x, residual, w, eps, spec, keep_y);
#endif
  auto [h, y, rstd] = rms_norm_composite(x, residual, w, eps);
  return {.h = h,
          .rstd = rstd,
          .y = keep_y ? y : at::Tensor(),
          .operand = quantize_operand(as_matrix(y), spec)};
}

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("rms_norm_forward", &rms_norm_composite);
  m.impl("rms_norm_backward", &rms_norm_backward_composite);
}
TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("rms_norm_forward", &rms_norm_forward_meta);
  m.impl("rms_norm_backward", &rms_norm_backward_meta);
}
TORCH_LIBRARY_IMPL(octavo, CompositeImplicitAutograd, m) {
  m.impl("rms_norm", &octavo::rms_norm);
  m.impl("add_rms_norm", &octavo::add_rms_norm);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w, double eps) {
  return ops::RmsNorm::apply(x, std::optional<at::Tensor>(), w, eps)[0];
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& w, double eps) {
  const auto outputs = ops::RmsNorm::apply(x, std::optional<at::Tensor>(residual), w, eps);
  return {outputs[0], outputs[1]};
}

}  // namespace octavo
