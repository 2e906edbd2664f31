#include "octavo/ops/linear_cross_entropy.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/linear_cross_entropy_ops.h"

namespace octavo::ops {
namespace {

using LossResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // loss, dx, dw

LossResult call_linear_cross_entropy_forward(const at::Tensor& x, const at::Tensor& w,
                                             const at::Tensor& targets, std::int64_t chunk_bytes,
                                             bool need_dx, bool need_dw) {
  static const auto op = find_operator<decltype(call_linear_cross_entropy_forward)>(
      "octavo::linear_cross_entropy_forward");
  return op.call(x, w, targets, chunk_bytes, need_dx, need_dw);
}

void check_linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                const at::Tensor& targets) {
  TORCH_CHECK(w.dim() == 2 && x.dim() >= 1 && x.sym_size(-1) == w.sym_size(1) &&
                  x.scalar_type() == w.scalar_type(),
              "linear_cross_entropy: x is ", x.scalar_type(), " ", x.sym_sizes(), " and w ",
              w.scalar_type(), " ", w.sym_sizes(), "; expected (..., K) and (V, K) of one dtype");
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK(
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble,
      "linear_cross_entropy: expected x and w in float32, bfloat16, float16 or float64, got ",
      dtype, "; convert them first");
  TORCH_CHECK(targets.scalar_type() == at::kLong &&
                  targets.sym_sizes() == x.sym_sizes().slice(0, x.dim() - 1),
              "linear_cross_entropy: targets is ", targets.scalar_type(), " ", targets.sym_sizes(),
              "; expected int64 ", x.sym_sizes().slice(0, x.dim() - 1), ", one for each row of x");
  check_one_device("linear_cross_entropy", {x, w, targets});
}

LossResult linear_cross_entropy_meta(const at::Tensor& x, const at::Tensor& w,
                                     const at::Tensor& targets, std::int64_t, bool need_dx,
                                     bool need_dw) {
  check_linear_cross_entropy(x, w, targets);
  const auto gradient = [](const at::Tensor& of, bool needed) {
    return needed ? at::empty_symint(of.sym_sizes(), of.options())
                  : at::empty_symint({0}, of.options());
  };
  return {at::empty({}, x.options().dtype(at::kFloat)), gradient(x, need_dx), gradient(w, need_dw)};
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w, const at::Tensor& targets,
                            std::int64_t chunk_bytes, bool records) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [loss, dx, dw] = call_linear_cross_entropy_forward(
        x, w, targets, chunk_bytes, records && x.requires_grad(), records && w.requires_grad());
    context->save_for_backward({dx, dw});
    return loss;
  }

  // The gradients are those of a loss that counts once: scaled in place, no second copy of dw.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    TORCH_CHECK(!context->saved_data.count("used"),
                "linear_cross_entropy: backward ran before; call the loss again");
    context->saved_data["used"] = true;
    const auto saved = context->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto scaled = [&](int input) {
      if (!context->needs_input_grad(input)) return at::Tensor();
      return saved[input].mul_(gradients[0]);
    };
    const auto wanted = [](const at::Tensor& gradient) {
      return gradient.defined() && at::GradMode::is_enabled()
                 ? without_derivative("linear_cross_entropy's backward", gradient)
                 : gradient;
    };
    return {wanted(scaled(0)), wanted(scaled(1)), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

#if OCTAVO_WITH_CUDA
// dw is in w.grad() already when backward comes, and dx is made with the gradient that backward is
// given.
class LinearCrossEntropyInPlace : public torch::autograd::Function<LinearCrossEntropyInPlace> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w, const at::Tensor& targets,
                            std::int64_t chunk_bytes, double gradient) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const bool adds = w.grad().defined();
    if (!adds) w.mutable_grad() = at::empty_like(w.detach());
    auto [loss, dx] = linear_cross_entropy_cuda({.x = x,
                                                 .w = w.detach(),
                                                 .targets = targets,
                                                 .chunk_bytes = chunk_bytes,
                                                 .gradient = gradient,
                                                 .need_dx = x.requires_grad(),
                                                 .dw = w.grad(),
                                                 .adds_to_dw = adds});
    context->save_for_backward({dx});
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = context->get_saved_variables()[0];
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};
#endif

at::Tensor linear_cross_entropy_kernel(const at::Tensor& x, const at::Tensor& w,
                                       const at::Tensor& targets, std::int64_t chunk_bytes) {
  check_linear_cross_entropy(x, w, targets);
  TORCH_CHECK(chunk_bytes > 0, "linear_cross_entropy: chunk_bytes is ", chunk_bytes,
              "; expected at least 1");
  if (!x.is_cuda() && !x.is_meta()) {
    const at::Tensor logits_MV =
        at::linear(x, w).reshape_symint({targets.sym_numel(), w.sym_size(0)}).to(at::kFloat);
    return cross_entropy(logits_MV, targets.flatten());
  }
  refuse_tangents("linear_cross_entropy", {x, w});
  // Inside a Function's forward grad mode is off.
  return LinearCrossEntropy::apply(x, w, targets, chunk_bytes, at::GradMode::is_enabled());
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CompositeImplicitAutograd, m) {
  m.impl("linear_cross_entropy", &linear_cross_entropy_kernel);
}
TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("linear_cross_entropy_forward", &linear_cross_entropy_meta);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                                std::int64_t chunk_bytes) {
  return ops::linear_cross_entropy_kernel(x, w, targets, chunk_bytes);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  try {
    return at::cross_entropy_loss(logits, targets);
  } catch (const c10::IndexError&) {
    const at::Tensor outside = (targets < 0).logical_or_(targets >= logits.size(1));
    const at::Tensor bad = targets.masked_select(outside.logical_and_(targets != -100));
    TORCH_CHECK_INDEX(bad.numel() == 0, "cross-entropy: targets: expected tokens of [0, ",
                      logits.size(1), "), or -100 for none, got ", bad[0].item<std::int64_t>(),
                      "; use data made for this vocabulary");
    throw;
  }
}

at::Tensor linear_cross_entropy_in_place([[maybe_unused]] const at::Tensor& x,
                                         [[maybe_unused]] const at::Tensor& w,
                                         [[maybe_unused]] const at::Tensor& targets,
                                         [[maybe_unused]] double gradient,
                                         [[maybe_unused]] std::int64_t chunk_bytes) {
#if OCTAVO_WITH_CUDA
  ops::check_linear_cross_entropy(x, w, targets);
  TORCH_CHECK(x.is_cuda() && at::GradMode::is_enabled() && w.requires_grad() &&
                  (!w.grad().defined() ||
                   (w.grad().is_contiguous() && w.grad().scalar_type() == w.scalar_type())),
              "linear_cross_entropy_in_place: w: expected a tensor on a GPU that requires a ",
              "gradient, a graph being recorded and a gradient of w's dtype or none, got ",
              w.device(), "; call linear_cross_entropy");
  return ops::LinearCrossEntropyInPlace::apply(x, w, targets, chunk_bytes, gradient);
#else
  TORCH_CHECK(false,
              "linear_cross_entropy_in_place: expected a build with GPU kernels; call "
              "linear_cross_entropy, or build the preset cuda");
#endif
}

}  // namespace octavo
