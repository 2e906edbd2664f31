#include "octavo/models/rope.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "octavo/ops/rope.h"

namespace octavo::models {
namespace {

// f (P/2) fp64: 2 pi / f positions make a turn.
at::Tensor stretched(const at::Tensor& f, const RopeScaling& scaling) {
  if (scaling.stretch == RopeStretch::kNone) return f;
  if (scaling.stretch == RopeStretch::kLinear) return f / scaling.factor;
  const double low = scaling.low_frequency_factor, high = scaling.high_frequency_factor;
  const at::Tensor turns = f * (double(scaling.original_sequence) / (2 * M_PI));
  const at::Tensor kept = ((turns - low) / (high - low)).clamp(0, 1);
  return f * kept + f / scaling.factor * (1 - kept);
}

}  // namespace

RopeTable RopeTable::slice(std::int64_t begin, std::int64_t length) const {
  return {cosine.narrow(0, begin, length), sine.narrow(0, begin, length)};
}

RopeTable make_rope_table(std::int64_t sequence, std::int64_t head_dim, double theta,
                          const at::Device& device, const RopeScaling& scaling) {
  const std::int64_t half = head_dim / 2;
  const auto fp64 = at::TensorOptions(at::kDouble);
  const at::Tensor exponents = at::arange(half, fp64).mul_(-2.0 / double(head_dim));
  const at::Tensor frequencies = stretched(at::pow(theta, exponents), scaling);     // (P/2)
  const at::Tensor angles = at::arange(sequence, fp64).unsqueeze(1) * frequencies;  // (T, P/2)
  const at::Tensor cosine = angles.cos(), sine = angles.sin();
  const auto as_table = [&](const at::Tensor& first, const at::Tensor& second) {
    return at::cat({first, second}, 1).unsqueeze(1).to(device, at::kFloat);
  };
  return {as_table(cosine, cosine), as_table(-sine, sine)};
}

std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                          const RopeTable& table) {
  return rope_query_key(q, k, table.cosine, table.sine);
}

}  // namespace octavo::models
