#pragma once

#include <cstdint>
#include <string_view>

/// Marks a function that runs on the host and, under nvcc or hipcc/clang HIP, on the device too.
#if defined(__CUDACC__)
#define OCTAVO_HOST_DEVICE __host__ __device__
#elif defined(__HIP__)  // needs no HIP header, unlike the macros __host__ and __device__
#define OCTAVO_HOST_DEVICE __attribute__((host)) __attribute__((device))
#else
#define OCTAVO_HOST_DEVICE
#endif

namespace octavo {

/// An 8-bit floating-point element format. Names follow ml_dtypes and torch: `fn` has no
/// infinities, `fnuz` has neither infinities nor a negative zero (byte 0x80 is its only NaN).
enum class Format : std::uint8_t { kE4M3FN, kE5M2, kE4M3FNUZ, kE5M2FNUZ };

/// The two families of FP8 formats hardware implements. OCP: e4m3fn and e5m2 (NVIDIA, AMD gfx950
/// and gfx12). FNUZ: e4m3fnuz and e5m2fnuz (AMD gfx940 to gfx942).
enum class Flavour : std::uint8_t { kOCP, kFNUZ };

/// A format's shape without its flavour: the choice a recipe makes. With the platform's flavour it
/// becomes a Format.
enum class Element : std::uint8_t { kE4M3, kE5M2 };

/// Everything Octavo knows about one element format. Sources: OCP 8-bit Floating Point
/// Specification (OFP8) 1.0 for e4m3fn and e5m2; Noune et al., "8-bit Numerical Formats for Deep
/// Neural Networks" (arXiv:2206.02915) for FNUZ.
///
/// A byte is sign, exponent e, mantissa m: value = (-1)^s * 2^(e - bias) * 1.m, and for e = 0
/// (-1)^s * 2^(1 - bias) * 0.m.
struct FormatLimits {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  float max;               ///< largest finite magnitude
  int max_exponent;        ///< floor(log2(max)), the OCP MX specification's emax
  std::uint8_t max_byte;   ///< encoding of +max
  std::uint8_t nan_byte;   ///< the one NaN Octavo writes
  bool has_infinity;       ///< only e5m2; its +Inf is max_byte + 1
  bool has_negative_zero;  ///< false for FNUZ, whose byte 0x80 is NaN
};

inline constexpr Format kAllFormats[] = {Format::kE4M3FN, Format::kE5M2, Format::kE4M3FNUZ,
                                         Format::kE5M2FNUZ};

/// The limits of `format`: the only place where these numbers are written. (A switch, not an
/// array: device code cannot index a host constant array at run time, and constants fold.)
OCTAVO_HOST_DEVICE constexpr FormatLimits limits(Format format) {
  switch (format) {
    case Format::kE4M3FN:
      return {.exponent_bits = 4,
              .mantissa_bits = 3,
              .bias = 7,
              .max = 448.0f,
              .max_exponent = 8,
              .max_byte = 0x7E,
              .nan_byte = 0x7F,
              .has_infinity = false,
              .has_negative_zero = true};
    case Format::kE5M2:
      return {.exponent_bits = 5,
              .mantissa_bits = 2,
              .bias = 15,
              .max = 57344.0f,
              .max_exponent = 15,
              .max_byte = 0x7B,
              .nan_byte = 0x7F,
              .has_infinity = true,
              .has_negative_zero = true};
    case Format::kE4M3FNUZ:
      return {.exponent_bits = 4,
              .mantissa_bits = 3,
              .bias = 8,
              .max = 240.0f,
              .max_exponent = 7,
              .max_byte = 0x7F,
              .nan_byte = 0x80,
              .has_infinity = false,
              .has_negative_zero = false};
    case Format::kE5M2FNUZ:
      break;
  }
  return {.exponent_bits = 5,
          .mantissa_bits = 2,
          .bias = 16,
          .max = 57344.0f,
          .max_exponent = 15,
          .max_byte = 0x7F,
          .nan_byte = 0x80,
          .has_infinity = false,
          .has_negative_zero = false};
}

/// The format of `element` on a platform of `flavour`.
OCTAVO_HOST_DEVICE constexpr Format format_of(Element element, Flavour flavour) {
  if (flavour == Flavour::kOCP) return element == Element::kE4M3 ? Format::kE4M3FN : Format::kE5M2;
  return element == Element::kE4M3 ? Format::kE4M3FNUZ : Format::kE5M2FNUZ;
}

/// The flavour `format` belongs to; the inverse of format_of() with element_of().
OCTAVO_HOST_DEVICE constexpr Flavour flavour_of(Format format) {
  return limits(format).has_negative_zero ? Flavour::kOCP : Flavour::kFNUZ;
}

/// `format` without its flavour.
OCTAVO_HOST_DEVICE constexpr Element element_of(Format format) {
  return limits(format).mantissa_bits == 3 ? Element::kE4M3 : Element::kE5M2;
}

/// "e4m3fn", "e5m2", "e4m3fnuz" or "e5m2fnuz".
constexpr std::string_view name(Format format) {
  constexpr std::string_view names[] = {"e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"};
  return names[static_cast<int>(format)];
}

/// "ocp" or "fnuz".
constexpr std::string_view name(Flavour flavour) {
  return flavour == Flavour::kOCP ? "ocp" : "fnuz";
}

/// "e4m3" or "e5m2".
constexpr std::string_view name(Element element) {
  return element == Element::kE4M3 ? "e4m3" : "e5m2";
}

}  // namespace octavo
