#include "octavo/models/rope.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace octavo::models {
namespace {

enum class Direction { kForward, kBackward };

// One read of x for each half of the table's work and no concatenation: autograd's own chain
// through chunk, neg and cat costs about twice as much.
at::Tensor turn(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                Direction direction) {
  const std::int64_t half = x.size(-1) / 2;
  // A rotation's inverse is its transpose: the same table with the other sign.
  const double sign = direction == Direction::kForward ? 1.0 : -1.0;
  at::Tensor y = x * cosine;
  y.narrow(-1, 0, half).addcmul_(x.narrow(-1, half, half), sine.narrow(-1, 0, half), sign);
  y.narrow(-1, half, half).addcmul_(x.narrow(-1, 0, half), sine.narrow(-1, half, half), sign);
  return y.to(x.scalar_type());
}

class RotateFunction : public torch::autograd::Function<RotateFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& cosine, const at::Tensor& sine) {
    context->save_for_backward({cosine, sine});
    return turn(x, cosine, sine, Direction::kForward);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto table = context->get_saved_variables();
    return {turn(gradients[0], table[0], table[1], Direction::kBackward), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

RopeTable RopeTable::slice(std::int64_t begin, std::int64_t length) const {
  return {cosine.narrow(0, begin, length), sine.narrow(0, begin, length)};
}

RopeTable make_rope_table(std::int64_t sequence, std::int64_t head_dim, double theta,
                          const at::Device& device) {
  const std::int64_t half = head_dim / 2;
  const auto fp64 = at::TensorOptions(at::kDouble);
  const at::Tensor exponents = at::arange(half, fp64).mul_(-2.0 / double(head_dim));
  const at::Tensor frequencies = at::pow(theta, exponents);                         // (P/2)
  const at::Tensor angles = at::arange(sequence, fp64).unsqueeze(1) * frequencies;  // (T, P/2)
  const at::Tensor cosine = angles.cos(), sine = angles.sin();
  const auto as_table = [&](const at::Tensor& first, const at::Tensor& second) {
    return at::cat({first, second}, 1).unsqueeze(1).to(device, at::kFloat);
  };
  return {as_table(cosine, cosine), as_table(-sine, sine)};
}

at::Tensor rotate(const at::Tensor& x, const RopeTable& table) {
  TORCH_CHECK(
      x.dim() == 4 && x.size(1) == table.cosine.size(0) && x.size(3) == table.cosine.size(2),
      "rotate: x is ", x.sizes(), " and the table ", table.cosine.sizes(),
      "; x must be (B, T, H, P) with the table's T rows and P features");
  return RotateFunction::apply(x, table.cosine, table.sine);
}

}  // namespace octavo::models
