#pragma once

#include "octavo/kernels/gpu/producer.h"

namespace octavo::gpu {

/// Quantises the rows of x (M, K), one fp32 scale a row, in one read (rows only; for both layouts
/// use amax() and cast()):
///
///   inv_scale = inv_scale_of(amax of the row, format, rounding);  scale[m] = scale_of(inv_scale)
///   data[m, k] = quantize_element(x[m, k], inv_scale)
///
/// Rows of up to 65536 columns, a multiple of 16, stay in registers; others are read twice, the
/// second time from the caches. Bytes and scales equal octavo/formats bit for bit. K = 0 writes
/// the scales of amax 0. Rows from *present on, a number on the device, are not read: data 0 and
/// the scales of amax 0.
struct QuantizeRowArgs {
  Matrix x = {};
  std::uint8_t* data = nullptr;  ///< (M, K), row-major
  float* scale = nullptr;        ///< (M); may be null
  Format format = Format::kE4M3FN;
  ScaleRounding rounding = ScaleRounding::kNone;
  const std::int32_t* present = nullptr;  ///< null: all rows are
  Producer from = {};                     ///< of x, if nobody has written it: fits_row_producer()
  void* written = nullptr;  ///< (M, K), 16-byte aligned: what the producer gives, if wanted too
};

void quantize_row(const QuantizeRowArgs& args, Stream stream);

/// Both halves of SwiGLU's gradients, (M, F) each, in one launch: alike but for data, scale,
/// written and Producer::first_column.
void quantize_row_pair(const QuantizeRowArgs& first, const QuantizeRowArgs& second, Stream stream);

/// Whether quantize_row() takes a producer: fits_producer(), and rows that stay in registers, K a
/// multiple of 16.
bool fits_row_producer(const QuantizeRowArgs& args);

}  // namespace octavo::gpu
