#pragma once

#include <cstdint>

#include "octavo/formats/scaling.h"
#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// One layout quantize_resident() writes.
struct ResidentLayout {
  std::uint8_t* data = nullptr;  ///< rows (M, K), transposed (K, M), row-major; null: not wanted
  float* scale = nullptr;        ///< one a row of the layout, or one
  bool per_row = true;           ///< false: one scale for the whole tensor
};

/// Whole-row, whole-column and whole-tensor scales in one launch and one read of x (M, K), for an x
/// small enough that all its tiles lie in the GPU's registers at once (fits_resident()):
///
///   every block keeps its 128 x 128 tile in registers and writes the tile's amaxes to `partial`;
///   all blocks wait for each other; every block takes the maximum over the tiles beside its own
///   inv_scale = inv_scale_of(amax, format, rounding);  scale = scale_of(inv_scale)
///   data = quantize_element(x, inv_scale)
///
/// Bytes and scales equal amax() and cast(), without zeroed buffers and atomics. The launch is
/// cooperative: the blocks must be resident together.
struct QuantizeResidentArgs {
  Matrix x = {};
  ResidentLayout rows = {};
  ResidentLayout transposed = {};
  float* partial = nullptr;  ///< resident_partials(x) floats, any content
  Format format = Format::kE4M3FN;
  ScaleRounding rounding = ScaleRounding::kNone;
};

/// Whether quantize_resident() can do it on the current device: x and the layouts take vectors (M a
/// multiple of 16, K of 8, 16-byte aligned), the hardware converts `format`, and the tiles fit
/// (bf16 on an H200: 528 tiles, 8.6 million elements).
bool fits_resident(const QuantizeResidentArgs& args);

/// Floats of scratch memory for x.
std::int64_t resident_partials(const Matrix& x);

void quantize_resident(const QuantizeResidentArgs& args, Stream stream);

}  // namespace octavo::gpu
