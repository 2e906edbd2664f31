#pragma once

#include <cstdint>
#include <string_view>

#include "octavo/device/architecture.h"

namespace octavo {

/// Which implementation computes a product.
enum class Backend : std::uint8_t {
  kAuto,       ///< the device's own choice, native_product()
  kReference,  ///< the CPU's: decode to fp32 and multiply
  kCublasLt,
  kOctavo,    ///< kernels of our own
  kAten,      ///< at::_scaled_mm, at::_scaled_grouped_mm
  kEmulated,  ///< the same bytes and scales, decoded and multiplied in bf16 or fp32
};

/// "auto", "reference", "cublaslt", "octavo", "aten" or "emulated".
constexpr std::string_view name(Backend backend) {
  constexpr std::string_view names[] = {"auto",   "reference", "cublaslt",
                                        "octavo", "aten",      "emulated"};
  return names[static_cast<int>(backend)];
}

/// True where the product runs on FP8 tensor cores.
constexpr bool is_native(Backend backend) {
  return backend == Backend::kCublasLt || backend == Backend::kOctavo || backend == Backend::kAten;
}

/// Scalings that need unlike products; the granularities of quantize/ fall into these.
enum class ScalingFamily : std::uint8_t {
  kTensorwise,
  kRowwise,
  kBlockwise,  ///< 1x128 with 1x128 or 128x128
  kMx,         ///< 1x32, e8m0 scales
};

inline constexpr ScalingFamily kAllScalingFamilies[] = {
    ScalingFamily::kTensorwise, ScalingFamily::kRowwise, ScalingFamily::kBlockwise,
    ScalingFamily::kMx};

/// "tensorwise", "rowwise", "blockwise" or "mx".
constexpr std::string_view name(ScalingFamily family) {
  constexpr std::string_view names[] = {"tensorwise", "rowwise", "blockwise", "mx"};
  return names[static_cast<int>(family)];
}

/// How a device computes one family of products.
struct NativeProduct {
  Backend backend = Backend::kEmulated;
  /// The device may lack the product: it is native only if a small one at start-up succeeds, and
  /// emulated otherwise.
  bool needs_probe = false;

  friend constexpr bool operator==(const NativeProduct&, const NativeProduct&) = default;
};

/// The product of a dense linear (not grouped) on `architecture` with operands of `flavour`.
///
/// Operands of the flavour the hardware does not speak are emulated, never reinterpreted. What is
/// not in the table below is emulated. Grouped products have their own table.
constexpr NativeProduct native_product(const Architecture& architecture, ScalingFamily family,
                                       Flavour flavour) {
  using enum Backend;
  if (architecture.vendor == Vendor::kCPU) return {kReference};
  if (!architecture.fp8_hardware || flavour != architecture.flavour) return {kEmulated};
  struct Row {
    std::string_view architecture;
    NativeProduct tensorwise, rowwise, blockwise, mx;
  };
  constexpr Row kTable[] = {
      //         tensorwise   rowwise        blockwise    mx
      {"sm_89", {kCublasLt}, {kAten}, {kEmulated}, {kEmulated}},
      {"sm_90", {kCublasLt}, {kCublasLt}, {kCublasLt}, {kEmulated}},
      {"sm_100", {kCublasLt}, {kAten}, {kEmulated}, {kAten}},
      {"sm_120", {kCublasLt}, {kAten, true}, {kEmulated}, {kAten, true}},
      {"gfx942", {kAten}, {kAten}, {kEmulated}, {kEmulated}},
      {"gfx950", {kAten}, {kAten}, {kEmulated}, {kAten}},
  };
  for (const Row& row : kTable) {
    if (row.architecture != architecture.name) continue;
    switch (family) {
      case ScalingFamily::kTensorwise:
        return row.tensorwise;
      case ScalingFamily::kRowwise:
        return row.rowwise;
      case ScalingFamily::kBlockwise:
        return row.blockwise;
      case ScalingFamily::kMx:
        return row.mx;
    }
  }
  return {kEmulated};
}

/// The grouped products of experts on `architecture` with operands of `flavour`: (M, K) x (E, N,
/// K)^T by groups of rows, and the weight gradients by groups of columns.
constexpr NativeProduct native_grouped_product(const Architecture& architecture,
                                               ScalingFamily family, Flavour flavour) {
  if (architecture.vendor == Vendor::kCPU) return {Backend::kReference};
  if (!architecture.fp8_hardware || flavour != architecture.flavour) return {Backend::kEmulated};
  const std::string_view name = architecture.name;
  if (name == "sm_90" && family == ScalingFamily::kBlockwise) return {Backend::kOctavo};
  if (name == "sm_100" && family == ScalingFamily::kMx) return {Backend::kAten};
  if (family != ScalingFamily::kRowwise) return {Backend::kEmulated};
  if (name == "sm_90") return {Backend::kOctavo};
  if (name == "sm_100" || name == "gfx942") return {Backend::kAten};
  return {Backend::kEmulated};
}

}  // namespace octavo
