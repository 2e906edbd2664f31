#pragma once

#include <cstdint>
#include <string_view>

/// Marks a function that runs on the host and, under nvcc or hipcc/clang HIP, on the device too.
#if defined(__CUDACC__) || defined(__HIP__)
#define OCTAVO_HOST_DEVICE __host__ __device__
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

/// A format's shape without its flavour: the choice a recipe makes. The platform turns it into a
/// Format.
enum class Element : std::uint8_t { kE4M3, kE5M2 };

/// Everything Octavo knows about one element format. The only place where these numbers are
/// written. Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0 for e4m3fn and e5m2;
/// Noune et al., "8-bit Numerical Formats for Deep Neural Networks" (arXiv:2206.02915) for FNUZ.
struct FormatLimits {
  int exponent_bits;
  int mantissa_bits;
  int bias;                ///< value = (-1)^s * 2^(e - bias) * 1.m
  float max;               ///< largest finite magnitude
  int max_exponent;        ///< floor(log2(max)): 8 for e4m3fn, 15 for e5m2 (the OCP MX "emax")
  std::uint8_t max_byte;   ///< encoding of +max
  std::uint8_t nan_byte;   ///< the NaN Octavo writes (sign dropped)
  bool has_infinity;       ///< only e5m2
  bool has_negative_zero;  ///< false for FNUZ
};

inline constexpr FormatLimits kFormatLimits[] = {
    {4, 3, 7, 448.0f, 8, 0x7E, 0x7F, false, true},      // e4m3fn
    {5, 2, 15, 57344.0f, 15, 0x7B, 0x7F, true, true},   // e5m2
    {4, 3, 8, 240.0f, 7, 0x7F, 0x80, false, false},     // e4m3fnuz
    {5, 2, 16, 57344.0f, 15, 0x7F, 0x80, false, false}  // e5m2fnuz
};

inline constexpr Format kAllFormats[] = {Format::kE4M3FN, Format::kE5M2, Format::kE4M3FNUZ,
                                         Format::kE5M2FNUZ};

/// The limits of `format`.
OCTAVO_HOST_DEVICE constexpr FormatLimits limits(Format format) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  // Device code cannot read a host constant array by a run-time index, so the table is local there.
  constexpr FormatLimits table[] = {kFormatLimits[0], kFormatLimits[1], kFormatLimits[2],
                                    kFormatLimits[3]};
  return table[static_cast<int>(format)];
#else
  return kFormatLimits[static_cast<int>(format)];
#endif
}

/// The format of `element` on a platform of `flavour`.
OCTAVO_HOST_DEVICE constexpr Format format_of(Element element, Flavour flavour) {
  if (flavour == Flavour::kOCP) return element == Element::kE4M3 ? Format::kE4M3FN : Format::kE5M2;
  return element == Element::kE4M3 ? Format::kE4M3FNUZ : Format::kE5M2FNUZ;
}

OCTAVO_HOST_DEVICE constexpr Flavour flavour_of(Format format) {
  return limits(format).has_negative_zero ? Flavour::kOCP : Flavour::kFNUZ;
}

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
