#pragma once

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// One layout a cast writes.
struct CastLayout {
  std::uint8_t* data = nullptr;  ///< rows (M, K), transposed (K, M), row-major; null: not wanted
  /// amax of the layout's rows: rows (M), transposed (K); or one for the whole tensor. fp32.
  const float* amax = nullptr;
  bool per_row = true;     ///< false: amax and scale are one number for the whole tensor
  float* scale = nullptr;  ///< as many as amax; may be null
};

/// Quantises x (M, K) with scales that follow from known amaxes, both layouts in one read:
///
///   inv_scale = inv_scale_of(amax, format, rounding);  scale = scale_of(inv_scale)
///   rows.data[m, k]       = quantize_element(x[m, k], inv_scale of row m or of the tensor)
///   transposed.data[k, m] = quantize_element(x[m, k], inv_scale of column k or of the tensor)
///
/// Bytes and scales equal octavo/formats bit for bit. Empty x writes no data; with M or K zero the
/// scales of the rows there are (amax 0) are still written.
struct CastArgs {
  Matrix x = {};
  CastLayout rows = {};
  CastLayout transposed = {};
  Format format = Format::kE4M3FN;
  ScaleRounding rounding = ScaleRounding::kNone;
};

void cast(const CastArgs& args, Stream stream);

}  // namespace octavo::gpu
