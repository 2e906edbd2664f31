#include "octavo/ops/linear_cross_entropy.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "octavo/ops/below.h"

namespace octavo::ops {
namespace {

using LossResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // loss, dx, dw

LossResult call_linear_cross_entropy_forward(const at::Tensor& x, const at::Tensor& w,
                                             const at::Tensor& targets, std::int64_t chunk_bytes,
                                             bool need_dx, bool need_dw) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("octavo::linear_cross_entropy_forward", "")
                             .typed<decltype(call_linear_cross_entropy_forward)>();
  return op.call(x, w, targets, chunk_bytes, need_dx, need_dw);
}

void check_linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                const at::Tensor& targets) {
  TORCH_CHECK(w.dim() == 2 && x.dim() >= 1 && x.sym_size(-1) == w.sym_size(1) &&
                  x.scalar_type() == w.scalar_type(),
              "linear_cross_entropy: x is ", x.scalar_type(), " ", x.sym_sizes(), " and w ",
              w.scalar_type(), " ", w.sym_sizes(), "; expected (..., K) and (V, K) of one dtype");
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

at::Tensor linear_cross_entropy_kernel(const at::Tensor& x, const at::Tensor& w,
                                       const at::Tensor& targets, std::int64_t chunk_bytes) {
  check_linear_cross_entropy(x, w, targets);
  TORCH_CHECK(chunk_bytes > 0, "linear_cross_entropy: chunk_bytes is ", chunk_bytes,
              "; expected at least 1");
  if (!x.is_cuda() && !x.is_meta()) {
    const at::Tensor logits_MV =
        at::linear(x, w).reshape({targets.numel(), w.size(0)}).to(at::kFloat);
    return at::cross_entropy_loss(logits_MV, targets.flatten());
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

}  // namespace octavo
