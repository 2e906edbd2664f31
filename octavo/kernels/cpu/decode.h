#pragma once

#include <cstdint>

#include "octavo/formats/format.h"

namespace octavo::kernels {

/// What the scale pointer of a DecodeArgs points to.
enum class ScaleKind : std::uint8_t {
  kNone,   ///< no scale: out = decode(data)
  kFloat,  ///< fp32 scales
  kE8M0,   ///< e8m0 codes
};

/// An FP8 matrix (R, C) and the fp32 matrix it is decoded into.
struct DecodeArgs {
  const std::uint8_t* data = nullptr;  ///< (R, C), columns contiguous
  std::int64_t row_stride = 0;         ///< elements between rows of data
  std::int64_t columns = 0;            ///< C
  Format format = Format::kE4M3FN;
  float* out = nullptr;             ///< (R, C), columns contiguous
  std::int64_t out_row_stride = 0;  ///< elements between rows of out

  ScaleKind scale_kind = ScaleKind::kNone;
  const void* scale = nullptr;           ///< scale of block (i, j) at i * row + j * column stride
  std::int64_t scale_row_stride = 0;     ///< elements
  std::int64_t scale_column_stride = 0;  ///< elements
  std::int64_t block_rows = 1;           ///< rows that share a scale, at least 1
  std::int64_t block_columns = 1;        ///< columns that share a scale, at least 1
};

/// Decodes rows [row_begin, row_end) of `args`:
///
///   out[r,c] = decode(data[r,c])                          without scales, exact
///   out[r,c] = fp32(decode(data[r,c]) * scale[block])     with them, one rounding
///
/// The same bits on every instruction set as formats/codec.h gives: NaN bytes become the quiet NaN
/// 0x7FC00000, e5m2's infinities stay infinite, subnormals are exact also where the processor
/// flushes fp32 subnormals. A NaN scale makes its block NaN. No rows or no columns: nothing.
/// out must not overlap data. Does not throw, allocates nothing.
void decode_rows(const DecodeArgs& args, std::int64_t row_begin, std::int64_t row_end);

}  // namespace octavo::kernels
