#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace octavo {

/// Rotary position embedding, Hugging Face's half-split convention: feature i is paired with
/// feature i + P/2, and each pair is turned by its position's angle.
///
///   y[i]       = x[i] cosine[i]             + x[i + P/2] sine[i]
///   y[i + P/2] = x[i + P/2] cosine[i + P/2] + x[i] sine[i + P/2]
///
/// x: (B, T, H, P) any floating dtype; cosine, sine: (T, 1, P) fp32, sine negative in the first
/// half (models/rope.h makes them). y: as x, computed in fp32 for fp32, bf16 and fp16, rounded
/// once. P is even. `inverse` turns back: the sines with the other sign. Differentiable in x; keeps
/// nothing but the table. Empty x gives empty y. Errors: sizes that do not fit.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                bool inverse = false);

/// rope() of queries (B, T, H, P) and keys (B, T, H', P) of one dtype, in one launch on a GPU, and
/// so its backward. Errors: as rope()'s, and queries and keys that differ in more than their heads.
std::tuple<at::Tensor, at::Tensor> rope_query_key(const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& cosine, const at::Tensor& sine,
                                                  bool inverse = false);

namespace ops {

/// By LibTorch's own operations: any device, floating type and strides.
at::Tensor rope_composite(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                          bool inverse);
std::tuple<at::Tensor, at::Tensor> rope_query_key_composite(const at::Tensor& q,
                                                            const at::Tensor& k,
                                                            const at::Tensor& cosine,
                                                            const at::Tensor& sine, bool inverse);
void check_rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine);
void check_rope_query_key(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cosine,
                          const at::Tensor& sine);

}  // namespace ops
}  // namespace octavo
