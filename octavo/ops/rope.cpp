#include "octavo/ops/rope.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"

namespace octavo::ops {
namespace {

at::Tensor call_rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                     bool inverse) {
  static const auto op = find_operator<decltype(call_rope)>("octavo::rope");
  return op.call(x, cosine, sine, inverse);
}

std::tuple<at::Tensor, at::Tensor> call_rope_query_key(const at::Tensor& q, const at::Tensor& k,
                                                       const at::Tensor& cosine,
                                                       const at::Tensor& sine, bool inverse) {
  static const auto op = find_operator<decltype(call_rope_query_key)>("octavo::rope_query_key");
  return op.call(q, k, cosine, sine, inverse);
}

at::Tensor rope_meta(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, bool) {
  check_rope(x, cosine, sine);
  return at::empty_symint(x.sym_sizes(), x.options());
}

std::tuple<at::Tensor, at::Tensor> rope_query_key_meta(const at::Tensor& q, const at::Tensor& k,
                                                       const at::Tensor& cosine,
                                                       const at::Tensor& sine, bool) {
  check_rope_query_key(q, k, cosine, sine);
  return {at::empty_symint(q.sym_sizes(), q.options()),
          at::empty_symint(k.sym_sizes(), k.options())};
}

// A rotation's inverse is its transpose, so its gradient is the rotation back.
class Rope : public torch::autograd::Function<Rope> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& cosine, const at::Tensor& sine, bool inverse) {
    context->save_for_backward({cosine, sine});
    context->saved_data["inverse"] = inverse;
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_rope(x, cosine, sine, inverse);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto table = context->get_saved_variables();
    return {rope(gradients[0], table[0], table[1], !context->saved_data["inverse"].toBool()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class RopeQueryKey : public torch::autograd::Function<RopeQueryKey> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& cosine, const at::Tensor& sine,
                                                bool inverse) {
    context->save_for_backward({cosine, sine});
    context->saved_data["inverse"] = inverse;
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y_q, y_k] = call_rope_query_key(q, k, cosine, sine, inverse);
    return {y_q, y_k};
  }

  // A gradient that nobody gave comes as zeros.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto table = context->get_saved_variables();
    auto [dq, dk] = rope_query_key(gradients[0], gradients[1], table[0], table[1],
                                   !context->saved_data["inverse"].toBool());
    return {dq, dk, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> rope_query_key_autograd(const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& cosine,
                                                           const at::Tensor& sine, bool inverse) {
  refuse_tangents("rope_query_key", {q, k, cosine, sine});
  const auto y = RopeQueryKey::apply(q, k, cosine, sine, inverse);
  return {y[0], y[1]};
}

at::Tensor rope_autograd(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                         bool inverse) {
  refuse_tangents("rope", {x, cosine, sine});
  return Rope::apply(x, cosine, sine, inverse);
}

}  // namespace

void check_rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  TORCH_CHECK(x.dim() == 4 && cosine.dim() == 3 && x.sym_size(1) == cosine.sym_size(0) &&
                  cosine.sym_size(1) == 1 && x.sym_size(3) == cosine.sym_size(2),
              "rope: x is ", x.sym_sizes(), " and the table ", cosine.sym_sizes(),
              "; x must be (B, T, H, P) and the table (T, 1, P)");
  TORCH_CHECK(x.is_floating_point() && x.sym_size(3) % 2 == 0, "rope: x is ", x.scalar_type(), " ",
              x.sym_sizes(),
              "; expected a floating dtype and an even number of features, which turn in pairs");
  TORCH_CHECK(sine.sym_sizes() == cosine.sym_sizes(), "rope: sine is ", sine.sym_sizes(),
              " and cosine ", cosine.sym_sizes(), "; they are the two halves of one table");
  check_one_device("rope", {x, cosine, sine});
}

// One read of x for each half of the table's work and no concatenation: autograd's own chain
// through chunk, neg and cat costs about twice as much.
at::Tensor rope_composite(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                          bool inverse) {
  check_rope(x, cosine, sine);
  const std::int64_t half = x.size(-1) / 2;
  const double sign = inverse ? -1.0 : 1.0;
  at::Tensor y = x * cosine;
  y.narrow(-1, 0, half).addcmul_(x.narrow(-1, half, half), sine.narrow(-1, 0, half), sign);
  y.narrow(-1, half, half).addcmul_(x.narrow(-1, 0, half), sine.narrow(-1, half, half), sign);
  return y.to(x.scalar_type());
}

void check_rope_query_key(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cosine,
                          const at::Tensor& sine) {
  check_rope(q, cosine, sine);
  check_rope(k, cosine, sine);
  TORCH_CHECK(q.sym_size(0) == k.sym_size(0) && q.scalar_type() == k.scalar_type(),
              "rope_query_key: k is ", k.scalar_type(), " ", k.sym_sizes(), " and q ",
              q.scalar_type(), " ", q.sym_sizes(), "; they may differ in their heads alone");
  check_one_device("rope_query_key", {q, k});
}

std::tuple<at::Tensor, at::Tensor> rope_query_key_composite(const at::Tensor& q,
                                                            const at::Tensor& k,
                                                            const at::Tensor& cosine,
                                                            const at::Tensor& sine, bool inverse) {
  check_rope_query_key(q, k, cosine, sine);
  return {rope_composite(q, cosine, sine, inverse), rope_composite(k, cosine, sine, inverse)};
}

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("rope", &rope_composite);
  m.impl("rope_query_key", &rope_query_key_composite);
}
TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("rope", &rope_meta);
  m.impl("rope_query_key", &rope_query_key_meta);
}
TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("rope", &rope_autograd);
  m.impl("rope_query_key", &rope_query_key_autograd);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                bool inverse) {
  return ops::call_rope(x, cosine, sine, inverse);
}

std::tuple<at::Tensor, at::Tensor> rope_query_key(const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& cosine, const at::Tensor& sine,
                                                  bool inverse) {
  return ops::call_rope_query_key(q, k, cosine, sine, inverse);
}

}  // namespace octavo
