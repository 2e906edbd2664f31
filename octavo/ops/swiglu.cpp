#include "octavo/ops/swiglu.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/swiglu_device.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {
namespace {

using SwigluGradients = std::tuple<at::Tensor, at::Tensor>;

at::Tensor call_swiglu(const at::Tensor& gate, const std::optional<at::Tensor>& up) {
  static const auto op = find_operator<decltype(call_swiglu)>("octavo::swiglu");
  return op.call(gate, up);
}

SwigluGradients call_swiglu_backward(const at::Tensor& dh, const at::Tensor& gate,
                                     const std::optional<at::Tensor>& up) {
  static const auto op = find_operator<decltype(call_swiglu_backward)>("octavo::swiglu_backward");
  return op.call(dh, gate, up);
}

void check_swiglu_arguments(const at::Tensor& gate, const std::optional<at::Tensor>& up) {
  TORCH_CHECK(gate.dim() >= 1, "swiglu: gate must be (..., F), got a scalar");
  const at::ScalarType dtype = gate.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
              "swiglu: gate must be float32, bfloat16 or float16, got ", dtype,
              "; convert it with gate.to(torch.float32)");
  if (!up) return;
  TORCH_CHECK(up->scalar_type() == dtype && up->dim() == gate.dim(), "swiglu: gate and up must be ",
              "alike, got ", dtype, " with ", gate.dim(), " dimensions and ", up->scalar_type(),
              " with ", up->dim(), "; convert one of them");
  check_one_device("swiglu", {gate, *up});
}

// gate and up (R, F), whether they came as two tensors or one.
struct GateUp {
  at::Tensor gate, up;
};

at::Tensor rows_of_last(const at::Tensor& x) {
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.size(i);
  const at::Tensor matrix = x.dim() == 2 ? x : x.reshape({rows, x.size(-1)});
  return matrix.size(1) <= 1 || matrix.stride(1) == 1 ? matrix : matrix.contiguous();
}

GateUp halves_of(const at::Tensor& gate, const std::optional<at::Tensor>& up) {
  const at::Tensor first = rows_of_last(gate);
  if (up) {
    TORCH_CHECK(up->sizes() == gate.sizes(), "swiglu: gate and up must have equal sizes, got ",
                gate.sizes(), " and ", up->sizes());
    return {first, rows_of_last(*up)};
  }
  const std::int64_t columns = first.size(1);
  TORCH_CHECK(columns % 2 == 0, "swiglu: gate without up must hold both, (..., 2F), got ",
              gate.sizes(), "; pass up, or stack the weights of gate and up");
  return {first.narrow(1, 0, columns / 2), first.narrow(1, columns / 2, columns / 2)};
}

at::Tensor swiglu_kernel(const at::Tensor& gate, const std::optional<at::Tensor>& up) {
  check_swiglu_arguments(gate, up);
  const GateUp in = halves_of(gate, up);
  std::vector<std::int64_t> sizes = gate.sizes().vec();
  sizes.back() = in.gate.size(1);
  const at::Tensor h = empty_on(gate.device(), sizes, gate.scalar_type());
  swiglu_rows(in.gate, in.up, h.view(in.gate.sizes()));
  return h;
}

SwigluGradients swiglu_backward_kernel(const at::Tensor& dh, const at::Tensor& gate,
                                       const std::optional<at::Tensor>& up) {
  check_swiglu_arguments(gate, up);
  const GateUp in = halves_of(gate, up);
  const at::Tensor dh_rows = rows_of_last(dh);
  TORCH_CHECK(dh_rows.sizes() == in.gate.sizes() && dh.scalar_type() == gate.scalar_type(),
              "swiglu_backward: dh must have the sizes and dtype of swiglu's result, got ",
              dh.sizes(), " ", dh.scalar_type());
  const at::Tensor dgate = empty_on(gate.device(), gate.sizes(), gate.scalar_type());
  const at::Tensor dup =
      empty_on(gate.device(), up ? gate.sizes() : at::IntArrayRef({0}), gate.scalar_type());
  const GateUp out = halves_of(dgate, up ? std::optional<at::Tensor>(dup) : std::nullopt);
  swiglu_backward_rows(dh_rows, in.gate, in.up, out.gate, out.up);
  return {dgate, dup};
}

at::Tensor swiglu_meta(const at::Tensor& gate, const std::optional<at::Tensor>& up) {
  check_swiglu_arguments(gate, up);
  std::vector<c10::SymInt> sizes = gate.sym_sizes().vec();
  if (!up) sizes.back() = sizes.back() / 2;
  return at::empty_symint(sizes, gate.options());
}

SwigluGradients swiglu_backward_meta(const at::Tensor& dh, const at::Tensor& gate,
                                     const std::optional<at::Tensor>& up) {
  check_swiglu_arguments(gate, up);
  check_one_device("swiglu_backward", {gate, dh});
  return {
      at::empty_symint(gate.sym_sizes(), gate.options()),
      up ? at::empty_symint(gate.sym_sizes(), gate.options()) : nothing(gate, gate.scalar_type())};
}

class Swiglu : public torch::autograd::Function<Swiglu> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& gate,
                            const std::optional<at::Tensor>& up) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({gate, up.value_or(at::Tensor())});
    return call_swiglu(gate, up);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const bool two = saved[1].defined();
    SwigluGradients result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      result = call_swiglu_backward(grads[0], saved[0],
                                    two ? std::optional<at::Tensor>(saved[1]) : std::nullopt);
    }
    const auto wanted = [](const at::Tensor& gradient) {
      return at::GradMode::is_enabled() ? without_derivative("swiglu's backward", gradient)
                                        : gradient;
    };
    return {wanted(std::get<0>(result)), two ? wanted(std::get<1>(result)) : at::Tensor()};
  }
};

at::Tensor swiglu_autograd(const at::Tensor& gate, const std::optional<at::Tensor>& up) {
  const at::Tensor second = up.value_or(at::Tensor());
  refuse_tangents("swiglu", {gate, second});
  if (!requires_derivative({gate, second})) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_swiglu(gate, up);
  }
  return Swiglu::apply(gate, up);
}

SwigluGradients swiglu_backward_autograd(const at::Tensor& dh, const at::Tensor& gate,
                                         const std::optional<at::Tensor>& up) {
  const at::Tensor second = up.value_or(at::Tensor());
  refuse_tangents("swiglu_backward", {dh, gate, second});
  SwigluGradients result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_swiglu_backward(dh, gate, up);
  }
  if (requires_derivative({dh, gate, second})) {
    result = {without_derivative("swiglu_backward", std::get<0>(result)),
              without_derivative("swiglu_backward", std::get<1>(result))};
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("swiglu", &swiglu_kernel);
  m.impl("swiglu_backward", &swiglu_backward_kernel);
}
TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("swiglu", &swiglu_kernel);
  m.impl("swiglu_backward", &swiglu_backward_kernel);
}
TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("swiglu", &swiglu_meta);
  m.impl("swiglu_backward", &swiglu_backward_meta);
}
TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("swiglu", &swiglu_autograd);
  m.impl("swiglu_backward", &swiglu_backward_autograd);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("swiglu", &below_autocast<&call_swiglu>::call);
  m.impl("swiglu_backward", &below_autocast<&call_swiglu_backward>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("swiglu", &below_autocast<&call_swiglu>::call);
  m.impl("swiglu_backward", &below_autocast<&call_swiglu_backward>::call);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor swiglu(const at::Tensor& gate, const std::optional<at::Tensor>& up) {
  return ops::call_swiglu(gate, up);
}

}  // namespace octavo
