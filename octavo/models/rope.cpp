#include "octavo/models/rope.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "octavo/ops/rope.h"

namespace octavo::models {
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
  return rope(x, table.cosine, table.sine);
}

}  // namespace octavo::models
