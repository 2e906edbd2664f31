#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace octavo::models {

/// Cosines and signed sines of every position, as `rotate` reads them.
struct RopeTable {
  at::Tensor cosine;  // (T, 1, P): cos(t * f_i), i = feature mod P/2
  at::Tensor sine;    // (T, 1, P): -sin in the first half of the features, +sin in the second

  /// Rows [begin, begin + length): views.
  RopeTable slice(std::int64_t begin, std::int64_t length) const;
};

/// The table for positions 0 .. T-1 of heads with P features: f_i = theta^(-2i/P). Angles are
/// computed in fp64 and the results rounded to fp32 once. (Hugging Face computes angles in fp32,
/// which differs by up to 5e-4 at position 8192.)
RopeTable make_rope_table(std::int64_t sequence, std::int64_t head_dim, double theta,
                          const at::Device& device);

/// Rotary position embedding, Hugging Face's half-split convention: feature i is paired with
/// feature i + P/2, and each pair is turned by its angle t * f_i.
///
///   y[i]       = x[i] cos - x[i + P/2] sin
///   y[i + P/2] = x[i + P/2] cos + x[i] sin
///
/// x: (B, T, H, P) any floating dtype; table of T rows. y: as x, computed in fp32 for fp32, bf16
/// and fp16, rounded once. Differentiable in x; keeps nothing but the table. Empty x gives empty y.
at::Tensor rotate(const at::Tensor& x, const RopeTable& table);

}  // namespace octavo::models
