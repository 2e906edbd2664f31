#pragma once

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// One layout a block quantiser writes. A layout of R rows and C columns has scales
/// (R or ceil(R/128), ceil(C/128)) at scale[row * row_stride + column * column_stride].
struct BlockLayout {
  std::uint8_t* data = nullptr;  ///< rows (M, K), transposed (K, M), row-major; null: not wanted
  float* scale = nullptr;
  std::int64_t scale_row_stride = 0;
  std::int64_t scale_column_stride = 0;
};

/// The block that shares a scale, seen from the layout that carries it.
enum class BlockShape : std::uint8_t {
  k1x128,    ///< rows: 1x128 of x; transposed: 128x1 of x
  k128x128,  ///< both layouts hold the same bytes, transposed
};

/// Quantises x (M, K) with one fp32 scale for each block, both layouts in one read:
///
///   amax = largest |x| of the block (elements outside x do not count)
///   inv_scale = inv_scale_of(amax, format, rounding);  scale = scale_of(inv_scale)
///   data = quantize_element(x, inv_scale)
///
/// Bytes and scales equal octavo/formats bit for bit. Empty x writes nothing.
struct QuantizeBlockArgs {
  Matrix x = {};
  BlockLayout rows = {};
  BlockLayout transposed = {};
  BlockShape shape = BlockShape::k1x128;
  Format format = Format::kE4M3FN;
  ScaleRounding rounding = ScaleRounding::kNone;
};

void quantize_block(const QuantizeBlockArgs& args, Stream stream);

}  // namespace octavo::gpu
