#pragma once

#include "octavo/kernels/gpu/platform.h"
#include "octavo/kernels/gpu/types.h"

/// Scales and casts as every kernel that writes FP8 computes them.
namespace octavo::gpu {

/// Four values to four bytes of a format chosen at run time. One function, not inlined: kernels
/// that use it are for odd shapes and simulated formats, and stay small.
OCTAVO_NOINLINE_DEVICE std::uint32_t encode4_any(Format format, float x0, float x1, float x2,
                                                 float x3) {
  switch (format) {
    case Format::kE4M3FN:
      return encode4<Format::kE4M3FN>(x0, x1, x2, x3);
    case Format::kE5M2:
      return encode4<Format::kE5M2>(x0, x1, x2, x3);
    case Format::kE4M3FNUZ:
      return encode4<Format::kE4M3FNUZ>(x0, x1, x2, x3);
    default:
      return encode4<Format::kE5M2FNUZ>(x0, x1, x2, x3);
  }
}

/// fp32 to FP8 in a format fixed when the kernel is compiled, by an instruction: kernels for
/// architectures without it are empty, and dispatch() never launches them (has_cast_instruction()).
template <Format F>
struct StaticEncoder {
  OCTAVO_DEVICE explicit StaticEncoder(Format) {}
  OCTAVO_DEVICE static constexpr bool exists() { return has_native_cast(F); }
  OCTAVO_DEVICE static constexpr Format format() { return F; }
  OCTAVO_DEVICE std::uint32_t operator()(float x0, float x1, float x2, float x3) const {
    return encode4<F>(x0, x1, x2, x3);
  }
};

/// fp32 to FP8 in a format chosen at run time.
struct DynamicEncoder {
  Format chosen;
  OCTAVO_DEVICE explicit DynamicEncoder(Format f) : chosen(f) {}
  OCTAVO_DEVICE static constexpr bool exists() { return true; }
  OCTAVO_DEVICE Format format() const { return chosen; }
  OCTAVO_DEVICE std::uint32_t operator()(float x0, float x1, float x2, float x3) const {
    return encode4_any(chosen, x0, x1, x2, x3);
  }
};

/// inv_scale_of() without double precision: fp32 division rounded to nearest gives the same bits
/// above the floor, and at or below it it is a constant of the format.
OCTAVO_DEVICE float inv_scale_on_device(float amax, Format format, ScaleRounding rounding) {
  if (amax != amax) return amax;
  constexpr float floor_below = static_cast<float>(kAmaxFloor);
  static_assert(static_cast<double>(floor_below) <= kAmaxFloor);
  const float max = limits(format).max;
  float inv_scale = divide_rn(max, amax);
  if (!(amax > floor_below)) {
    inv_scale = static_cast<float>(static_cast<double>(max) / kAmaxFloor);
  }
  if (rounding == ScaleRounding::kNone) return inv_scale;
  return internal::float_of(internal::bits_of(inv_scale) & 0xFF800000u);
}

OCTAVO_DEVICE float scale_on_device(float inv_scale) {
  if (inv_scale == 0.0f) return internal::float_of(0x7F800000u);
  return divide_rn(1.0f, inv_scale);
}

}  // namespace octavo::gpu
