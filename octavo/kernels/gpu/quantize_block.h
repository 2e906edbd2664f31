#pragma once

#include "octavo/kernels/gpu/groups.h"
#include "octavo/kernels/gpu/producer.h"

namespace octavo::gpu {

/// One layout a block quantiser writes, of R rows and C columns. Its scale (row, column) of matrix
/// g of a batch is at scale[g * scale_group_stride + row * scale_row_stride + column *
/// scale_column_stride].
struct BlockLayout {
  std::uint8_t* data = nullptr;  ///< rows (M, K), transposed (K, M), row-major; null: not wanted
  float* scale = nullptr;
  std::int64_t scale_row_stride = 0;
  std::int64_t scale_column_stride = 0;
  std::int64_t scale_group_stride = 0;
  /// False: blocks are 1x128 of the layout, scales (R, ceil(C/128)). True: 128x1, scales
  /// (ceil(R/128), C); element by element.
  bool across = false;
};

/// The block that shares a scale.
enum class BlockShape : std::uint8_t {
  k1x128,    ///< of each layout, or 128x1 where it says so
  k128x128,  ///< both layouts hold the same bytes, transposed
};

/// Quantises x (M, K) with one fp32 scale for each block, both layouts in one read:
///
///   amax = largest |x| of the block (elements outside x do not count)
///   inv_scale = inv_scale_of(amax, format, rounding);  scale = scale_of(inv_scale)
///   data = quantize_element(x, inv_scale)
///
/// Bytes and scales equal octavo/formats bit for bit. Empty x writes nothing. After a line of
/// 128x128 scales, room up to a multiple of 4 that its stride leaves is zeroed.
///
/// Groups (groups.h), by offsets: 1x128 only, planned with an alignment of 128: the transposed
/// layout's scales are (K, columns / 128), amax 0 for blocks of zeros.
struct QuantizeBlockArgs {
  Matrix x = {};
  BlockLayout rows = {};
  BlockLayout transposed = {};
  BlockShape shape = BlockShape::k1x128;
  Format format = Format::kE4M3FN;
  ScaleRounding rounding = ScaleRounding::kNone;
  Groups groups = {};
  Producer from = {};  ///< of x, if nobody has written it: k1x128, neither across, no batch
};

void quantize_block(const QuantizeBlockArgs& args, Stream stream);

/// Both halves of SwiGLU's gradients, as quantize_row_pair().
void quantize_block_pair(const QuantizeBlockArgs& first, const QuantizeBlockArgs& second,
                         Stream stream);

}  // namespace octavo::gpu
