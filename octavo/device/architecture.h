#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "octavo/formats/format.h"

namespace octavo {

enum class Vendor : std::uint8_t { kCPU, kNVIDIA, kAMD };

/// What Octavo knows about one kind of device.
struct Architecture {
  std::string_view name;  ///< "cpu", "sm_90", "gfx942": without feature flags or a letter's suffix
  Vendor vendor;
  Flavour flavour;    ///< of the FP8 hardware; OCP where there is none
  bool fp8_hardware;  ///< matrix products on FP8 operands
};

/// Every architecture Octavo knows. Sources: CUDA C++ Programming Guide (compute capabilities; FP8
/// tensor cores from 8.9 on), LLVM's AMDGPU usage guide and the CDNA 3, CDNA 4 and RDNA 4 ISA
/// guides (FNUZ in gfx940 to gfx942, OCP after them).
inline constexpr Architecture kArchitectures[] = {
    {"cpu", Vendor::kCPU, Flavour::kOCP, false},
    {"sm_80", Vendor::kNVIDIA, Flavour::kOCP, false},
    {"sm_86", Vendor::kNVIDIA, Flavour::kOCP, false},
    {"sm_89", Vendor::kNVIDIA, Flavour::kOCP, true},
    {"sm_90", Vendor::kNVIDIA, Flavour::kOCP, true},
    {"sm_100", Vendor::kNVIDIA, Flavour::kOCP, true},
    {"sm_103", Vendor::kNVIDIA, Flavour::kOCP, true},
    {"sm_120", Vendor::kNVIDIA, Flavour::kOCP, true},
    {"sm_121", Vendor::kNVIDIA, Flavour::kOCP, true},
    {"gfx908", Vendor::kAMD, Flavour::kOCP, false},
    {"gfx90a", Vendor::kAMD, Flavour::kOCP, false},
    {"gfx940", Vendor::kAMD, Flavour::kFNUZ, true},
    {"gfx941", Vendor::kAMD, Flavour::kFNUZ, true},
    {"gfx942", Vendor::kAMD, Flavour::kFNUZ, true},
    {"gfx950", Vendor::kAMD, Flavour::kOCP, true},
    {"gfx1100", Vendor::kAMD, Flavour::kOCP, false},
    {"gfx1200", Vendor::kAMD, Flavour::kOCP, true},
    {"gfx1201", Vendor::kAMD, Flavour::kOCP, true},
};

namespace internal {
/// "sm90", "sm_90" and "sm_90a" are one architecture; `text` has no ':' any more.
constexpr bool names_architecture(std::string_view text, const Architecture& architecture) {
  if (architecture.vendor != Vendor::kNVIDIA) return text == architecture.name;
  if (!text.starts_with("sm")) return false;
  text.remove_prefix(text.starts_with("sm_") ? 3 : 2);
  if (text.ends_with('a') || text.ends_with('f')) text.remove_suffix(1);
  return text == architecture.name.substr(3);
}

[[noreturn]] inline void throw_unknown_architecture(std::string_view text) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  throw std::invalid_argument("architecture: expected one of " + known + "; got \"" +
                              std::string(text) +
                              "\". A new one is added in octavo/device/architecture.h.");
}
}  // namespace internal

/// The architecture called `text`: "cpu", NVIDIA's "sm_90", "sm90" or "sm_90a", or what HIP
/// reports, "gfx942:sramecc+:xnack-" (cut at the first ':'). Errors: std::invalid_argument for any
/// other text, naming it and the known architectures.
constexpr Architecture parse_architecture(std::string_view text) {
  const std::string_view base = text.substr(0, text.find(':'));
  for (const Architecture& architecture : kArchitectures) {
    if (internal::names_architecture(base, architecture)) return architecture;
  }
  internal::throw_unknown_architecture(text);
}

/// "cpu", "nvidia" or "amd".
constexpr std::string_view name(Vendor vendor) {
  constexpr std::string_view names[] = {"cpu", "nvidia", "amd"};
  return names[static_cast<int>(vendor)];
}

}  // namespace octavo
