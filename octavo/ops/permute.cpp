#include "octavo/ops/permute.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/permute_device.h"

namespace octavo::ops {
namespace {

using MoveGradients = std::tuple<at::Tensor, at::Tensor>;  // of x and of weights

at::Tensor call_permute(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                        const std::optional<at::Tensor>& weights) {
  static const auto op = find_operator<decltype(call_permute)>("octavo::permute");
  return op.call(x, choice, row, weights);
}

MoveGradients call_permute_backward(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                    const at::Tensor& choice, const at::Tensor& row,
                                    const std::optional<at::Tensor>& weights) {
  static const auto op = find_operator<decltype(call_permute_backward)>("octavo::permute_backward");
  return op.call(dy, x, choice, row, weights);
}

at::Tensor call_unpermute(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                          const std::optional<at::Tensor>& weights) {
  static const auto op = find_operator<decltype(call_unpermute)>("octavo::unpermute");
  return op.call(x, choice, row, weights);
}

MoveGradients call_unpermute_backward(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                      const at::Tensor& choice, const at::Tensor& row,
                                      const std::optional<at::Tensor>& weights) {
  static const auto op =
      find_operator<decltype(call_unpermute_backward)>("octavo::unpermute_backward");
  return op.call(dy, x, choice, row, weights);
}

void check_moves(const char* what, const at::Tensor& x, const at::Tensor& choice,
                 const at::Tensor& row, const std::optional<at::Tensor>& weights) {
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK(x.dim() == 2 && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf),
              what, ": x must be a matrix of float32, bfloat16 or float16, got ", dtype, " with ",
              x.dim(), " dimensions");
  TORCH_CHECK(choice.scalar_type() == at::kLong && choice.dim() == 1 &&
                  row.scalar_type() == at::kLong && row.dim() == 2,
              what, ": choice must be int64 (M k) and row int64 (M, k), got ", choice.scalar_type(),
              " with ", choice.dim(), " dimensions and ", row.scalar_type(), " with ", row.dim(),
              "; sort the experts' choices first");
  TORCH_CHECK(!weights || (weights->scalar_type() == at::kFloat && weights->dim() == 2), what,
              ": weights must be float32 (M, k), as row");
  check_one_device(what, {x, choice, row, weights.value_or(at::Tensor())});
}

// The sizes agree; contiguous for the kernels.
Moves moves_of(const char* what, const at::Tensor& choice, const at::Tensor& row,
               const std::optional<at::Tensor>& weights) {
  TORCH_CHECK(choice.size(0) == row.numel(), what, ": choice and row must have one entry for each ",
              "copy, got ", choice.sizes(), " and ", row.sizes());
  TORCH_CHECK(!weights || weights->sizes() == row.sizes(), what,
              ": weights must have row's sizes, got ", weights ? weights->sizes() : row.sizes(),
              " and ", row.sizes());
  return {choice.contiguous(), row.contiguous(), weights ? weights->contiguous() : at::Tensor()};
}

void check_rows(const char* what, const char* argument, const at::Tensor& x, std::int64_t rows) {
  TORCH_CHECK(x.size(0) == rows, what, ": ", argument, " must have ", rows, " rows, got ",
              x.sizes());
}

void check_alike(const char* what, const at::Tensor& x, const at::Tensor& dy) {
  TORCH_CHECK(x.scalar_type() == dy.scalar_type() && x.size(1) == dy.size(1), what,
              ": x and dy must be alike, got ", x.scalar_type(), " ", x.sizes(), " and ",
              dy.scalar_type(), " ", dy.sizes());
}

at::Tensor permute_kernel(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                          const std::optional<at::Tensor>& weights) {
  check_moves("permute", x, choice, row, weights);
  const Moves moves = moves_of("permute", choice, row, weights);
  check_rows("permute", "x", x, row.size(0));
  return permuted(x.contiguous(), moves);
}

MoveGradients permute_backward_kernel(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                      const at::Tensor& choice, const at::Tensor& row,
                                      const std::optional<at::Tensor>& weights) {
  check_moves("permute_backward", dy, choice, row, weights);
  const Moves moves = moves_of("permute_backward", choice, row, weights);
  const at::Tensor plain = dy.contiguous();
  check_rows("permute_backward", "dy", plain, choice.size(0));
  at::Tensor dweights = at::empty({0}, dy.options().dtype(at::kFloat));
  if (x) {
    check_rows("permute_backward", "x", *x, row.size(0));
    check_alike("permute_backward", *x, dy);
    // weights[m,j] multiplies x[m] on its way to row[m,j], as unpermute's dy[m] on its way back.
    dweights = weight_gradient(x->contiguous(), plain, moves);
  }
  return {unpermuted(plain, moves), dweights};
}

at::Tensor unpermute_kernel(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                            const std::optional<at::Tensor>& weights) {
  check_moves("unpermute", x, choice, row, weights);
  const Moves moves = moves_of("unpermute", choice, row, weights);
  check_rows("unpermute", "x", x, choice.size(0));
  return unpermuted(x.contiguous(), moves);
}

MoveGradients unpermute_backward_kernel(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                        const at::Tensor& choice, const at::Tensor& row,
                                        const std::optional<at::Tensor>& weights) {
  check_moves("unpermute_backward", dy, choice, row, weights);
  const Moves moves = moves_of("unpermute_backward", choice, row, weights);
  const at::Tensor plain = dy.contiguous();
  check_rows("unpermute_backward", "dy", plain, row.size(0));
  at::Tensor dweights = at::empty({0}, dy.options().dtype(at::kFloat));
  if (x) {
    check_rows("unpermute_backward", "x", *x, choice.size(0));
    check_alike("unpermute_backward", *x, dy);
    dweights = weight_gradient(plain, x->contiguous(), moves);
  }
  return {permuted(plain, moves), dweights};
}

at::Tensor permute_meta(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                        const std::optional<at::Tensor>& weights) {
  check_moves("permute", x, choice, row, weights);
  return at::empty_symint({choice.sym_size(0), x.sym_size(1)}, x.options());
}

MoveGradients permute_backward_meta(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                    const at::Tensor& choice, const at::Tensor& row,
                                    const std::optional<at::Tensor>& weights) {
  check_moves("permute_backward", dy, choice, row, weights);
  return {at::empty_symint({row.sym_size(0), dy.sym_size(1)}, dy.options()),
          x ? at::empty_symint(row.sym_sizes(), dy.options().dtype(at::kFloat))
            : nothing(dy, at::kFloat)};
}

at::Tensor unpermute_meta(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                          const std::optional<at::Tensor>& weights) {
  check_moves("unpermute", x, choice, row, weights);
  return at::empty_symint({row.sym_size(0), x.sym_size(1)}, x.options());
}

MoveGradients unpermute_backward_meta(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                      const at::Tensor& choice, const at::Tensor& row,
                                      const std::optional<at::Tensor>& weights) {
  check_moves("unpermute_backward", dy, choice, row, weights);
  return {at::empty_symint({choice.sym_size(0), dy.sym_size(1)}, dy.options()),
          x ? at::empty_symint(row.sym_sizes(), dy.options().dtype(at::kFloat))
            : nothing(dy, at::kFloat)};
}

at::Tensor known_derivative(const char* what, const at::Tensor& gradient) {
  return at::GradMode::is_enabled() ? without_derivative(what, gradient) : gradient;
}

std::optional<at::Tensor> where_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

class Permute : public torch::autograd::Function<Permute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& choice, const at::Tensor& row,
                            const std::optional<at::Tensor>& weights) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const bool needs_x = weights && weights->requires_grad();
    ctx->save_for_backward(
        {needs_x ? x : at::Tensor(), choice, row, weights.value_or(at::Tensor())});
    return call_permute(x, choice, row, weights);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const bool dweights = saved[0].defined() && ctx->needs_input_grad(3);
    MoveGradients result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      result = call_permute_backward(grads[0], dweights ? where_defined(saved[0]) : std::nullopt,
                                     saved[1], saved[2], where_defined(saved[3]));
    }
    const char* name = "permute's backward";
    return {known_derivative(name, std::get<0>(result)), at::Tensor(), at::Tensor(),
            dweights ? known_derivative(name, std::get<1>(result)) : at::Tensor()};
  }
};

class Unpermute : public torch::autograd::Function<Unpermute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& choice, const at::Tensor& row,
                            const std::optional<at::Tensor>& weights) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const bool needs_x = weights && weights->requires_grad();
    ctx->save_for_backward(
        {needs_x ? x : at::Tensor(), choice, row, weights.value_or(at::Tensor())});
    return call_unpermute(x, choice, row, weights);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const bool dweights = saved[0].defined() && ctx->needs_input_grad(3);
    MoveGradients result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      result = call_unpermute_backward(grads[0], dweights ? where_defined(saved[0]) : std::nullopt,
                                       saved[1], saved[2], where_defined(saved[3]));
    }
    const char* name = "unpermute's backward";
    return {known_derivative(name, std::get<0>(result)), at::Tensor(), at::Tensor(),
            dweights ? known_derivative(name, std::get<1>(result)) : at::Tensor()};
  }
};

at::Tensor permute_autograd(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                            const std::optional<at::Tensor>& weights) {
  refuse_tangents("permute", {x, weights.value_or(at::Tensor())});
  if (!requires_derivative({x, weights.value_or(at::Tensor())})) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_permute(x, choice, row, weights);
  }
  return Permute::apply(x, choice, row, weights);
}

at::Tensor unpermute_autograd(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                              const std::optional<at::Tensor>& weights) {
  refuse_tangents("unpermute", {x, weights.value_or(at::Tensor())});
  if (!requires_derivative({x, weights.value_or(at::Tensor())})) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_unpermute(x, choice, row, weights);
  }
  return Unpermute::apply(x, choice, row, weights);
}

// Both backward operators: no derivative of their own.
template <auto call>
MoveGradients backward_autograd(const char* name, const at::Tensor& dy,
                                const std::optional<at::Tensor>& x, const at::Tensor& choice,
                                const at::Tensor& row, const std::optional<at::Tensor>& weights) {
  const at::Tensor none;
  refuse_tangents(name, {dy, x.value_or(none), weights.value_or(none)});
  MoveGradients result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call(dy, x, choice, row, weights);
  }
  if (requires_derivative({dy, x.value_or(none), weights.value_or(none)})) {
    result = {without_derivative(name, std::get<0>(result)),
              without_derivative(name, std::get<1>(result))};
  }
  return result;
}

MoveGradients permute_backward_autograd(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                        const at::Tensor& choice, const at::Tensor& row,
                                        const std::optional<at::Tensor>& weights) {
  return backward_autograd<&call_permute_backward>("permute_backward", dy, x, choice, row, weights);
}

MoveGradients unpermute_backward_autograd(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                          const at::Tensor& choice, const at::Tensor& row,
                                          const std::optional<at::Tensor>& weights) {
  return backward_autograd<&call_unpermute_backward>("unpermute_backward", dy, x, choice, row,
                                                     weights);
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("permute", &permute_kernel);
  m.impl("permute_backward", &permute_backward_kernel);
  m.impl("unpermute", &unpermute_kernel);
  m.impl("unpermute_backward", &unpermute_backward_kernel);
}
TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("permute", &permute_kernel);
  m.impl("permute_backward", &permute_backward_kernel);
  m.impl("unpermute", &unpermute_kernel);
  m.impl("unpermute_backward", &unpermute_backward_kernel);
}
TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("permute", &permute_meta);
  m.impl("permute_backward", &permute_backward_meta);
  m.impl("unpermute", &unpermute_meta);
  m.impl("unpermute_backward", &unpermute_backward_meta);
}
TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("permute", &permute_autograd);
  m.impl("permute_backward", &permute_backward_autograd);
  m.impl("unpermute", &unpermute_autograd);
  m.impl("unpermute_backward", &unpermute_backward_autograd);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("permute", &below_autocast<&call_permute>::call);
  m.impl("permute_backward", &below_autocast<&call_permute_backward>::call);
  m.impl("unpermute", &below_autocast<&call_unpermute>::call);
  m.impl("unpermute_backward", &below_autocast<&call_unpermute_backward>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("permute", &below_autocast<&call_permute>::call);
  m.impl("permute_backward", &below_autocast<&call_permute_backward>::call);
  m.impl("unpermute", &below_autocast<&call_unpermute>::call);
  m.impl("unpermute_backward", &below_autocast<&call_unpermute_backward>::call);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor permute(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                   const std::optional<at::Tensor>& weights) {
  return ops::call_permute(x, choice, row, weights);
}

at::Tensor unpermute(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                     const std::optional<at::Tensor>& weights) {
  return ops::call_unpermute(x, choice, row, weights);
}

}  // namespace octavo
