#pragma once

#include "octavo/kernels/gpu/groups.h"
#include "octavo/kernels/gpu/producer.h"

namespace octavo::gpu {

/// Which amax and scale an element of a layout has.
enum class CastScales : std::uint8_t {
  kTensor,  ///< one for all of x; in a batch, one a matrix
  kLines,   ///< one a row of the layout: rows (M), transposed (K)
  kAcross,  ///< one a column of the layout: rows (K), transposed (M); element by element, but for
            ///< rows alone
};

/// One layout a cast writes.
struct CastLayout {
  std::uint8_t* data = nullptr;  ///< rows (M, K), transposed (K, M), row-major; null: not wanted
  const float* amax = nullptr;   ///< fp32, known
  CastScales scales = CastScales::kLines;
  float* scale = nullptr;  ///< as many as amax; may be null
};

/// Quantises x (M, K) with scales that follow from known amaxes, both layouts in one read:
///
///   inv_scale = inv_scale_of(amax, format, rounding);  scale = scale_of(inv_scale)
///   rows.data[m, k]       = quantize_element(x[m, k], inv_scale of row m, column k or the tensor)
///   transposed.data[k, m] = quantize_element(x[m, k], inv_scale of column k, row m or the tensor)
///
/// Bytes and scales equal octavo/formats bit for bit. Empty x writes no data; with M or K zero
/// scales are still written for the lines there are. Where both layouts are scaled along the same
/// axis of x, their amaxes must be equal.
///
/// Groups (groups.h): a batch has amaxes and scales for each matrix, one after the other. With
/// offsets, rows have (M) and the transposed layout (groups, K), empty groups too; kLines only, and
/// the row amaxes of no group must be 0.
struct CastArgs {
  Matrix x = {};
  CastLayout rows = {};
  CastLayout transposed = {};
  Format format = Format::kE4M3FN;
  ScaleRounding rounding = ScaleRounding::kNone;
  Groups groups = {};
  Producer from = {};  ///< kRmsNorm: of x, if nobody has written it; no groups, no kAcross
};

void cast(const CastArgs& args, Stream stream);

}  // namespace octavo::gpu
