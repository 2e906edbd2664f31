#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "octavo/models/rope_scaling.h"

namespace octavo::models {

/// Cosines and signed sines of every position, as `rotate` reads them.
struct RopeTable {
  at::Tensor cosine;  // (T, 1, P): cos(t * f_i), i = feature mod P/2
  at::Tensor sine;    // (T, 1, P): -sin in the first half of the features, +sin in the second

  /// Rows [begin, begin + length): views.
  RopeTable slice(std::int64_t begin, std::int64_t length) const;
};

/// The table for positions 0 .. T-1 of heads with P features: f_i = theta^(-2i/P), stretched by
/// `scaling`. Angles are computed in fp64 and the results rounded to fp32 once. (Hugging Face
/// computes angles in fp32, which differs by up to 5e-4 at position 8192.)
RopeTable make_rope_table(std::int64_t sequence, std::int64_t head_dim, double theta,
                          const at::Device& device, const RopeScaling& scaling = {});

/// Queries (B, T, H, P) and keys (B, T, H', P) turned by their positions' angles, differentiable:
/// octavo::rope_query_key() (ops/rope.h).
std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                          const RopeTable& table);

}  // namespace octavo::models
