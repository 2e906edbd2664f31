#pragma once

#include "octavo/kernels/gpu/groups.h"
#include "octavo/kernels/gpu/producer.h"

namespace octavo::gpu {

/// How e8m0 codes lie in memory.
enum class MxScaleLayout : std::uint8_t {
  kPlain,      ///< (R, ceil(C/32)), row-major
  kTiled128x4  ///< tiles of 128 rows x 4 codes, 512 bytes each: see mx_tiled_offset()
};

/// Bytes a layout of R rows and `blocks` = ceil(C/32) codes a row needs in 128x4 tiles.
constexpr std::int64_t mx_tiled_bytes(std::int64_t rows, std::int64_t blocks) {
  return (rows + 127) / 128 * ((blocks + 3) / 4) * 512;
}

/// Where the code of (row, block) lies in 128x4 tiles, the layout of NVIDIA's block-scaled products
/// (cuBLAS, "1D block scaling factors layout"): tiles row-major; inside a tile the code of row r,
/// block b is byte (r % 32) * 16 + r / 32 * 4 + b.
OCTAVO_HOST_DEVICE constexpr std::int64_t mx_tiled_offset(std::int64_t row, std::int64_t block,
                                                          std::int64_t blocks) {
  const std::int64_t tile = row / 128 * ((blocks + 3) / 4) + block / 4;
  return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

/// One layout the MX quantiser writes.
struct MxLayout {
  std::uint8_t* data = nullptr;   ///< rows (M, K), transposed (K, M), row-major; null: not wanted
  std::uint8_t* scale = nullptr;  ///< e8m0 codes
};

/// Quantises x (M, K) in blocks of 1x32 along each layout's columns, both layouts in one read:
///
///   code = mx_code_of(amax of the block, format, rounding);  data = quantize_element(x,
///   inv_scale_e8m0(code))
///
/// Elements outside x do not count. The 128x4-tiled layout's padding gets code 0. Bytes and codes
/// equal octavo/formats bit for bit. Empty x writes nothing.
///
/// Groups (groups.h): plain codes only. By offsets, planned with an alignment of 32: the transposed
/// layout's codes are (K, columns / 32), code 0 for blocks of zeros.
struct QuantizeMxArgs {
  Matrix x = {};
  MxLayout rows = {};
  MxLayout transposed = {};
  MxScaleLayout scale_layout = MxScaleLayout::kPlain;
  Format format = Format::kE4M3FN;
  MxRounding rounding = MxRounding::kRceil;
  Groups groups = {};
  Producer from = {};  ///< of x, if nobody has written it: no batch
};

void quantize_mx(const QuantizeMxArgs& args, Stream stream);

/// Both halves of SwiGLU's gradients, as quantize_row_pair().
void quantize_mx_pair(const QuantizeMxArgs& first, const QuantizeMxArgs& second, Stream stream);

}  // namespace octavo::gpu
