#pragma once

#include <optional>
#include <string_view>

namespace octavo {

/// Dense matrix-product rates in FLOP/s (no 2:4 sparsity), as the vendor states them.
struct PeakRates {
  double bf16;
  std::optional<double> fp8;  ///< none: no FP8 tensor cores
};

namespace internal {
struct ProductPeakRates {
  std::string_view product;  ///< exactly as the driver reports it
  PeakRates rates;
};

inline constexpr double kTera = 1e12;

// NVIDIA's data sheets print most rates with sparsity: half of those, rounded down, is here. The
// figure printed follows each row. AMD's print dense rates.
inline constexpr ProductPeakRates kProductPeakRates[] = {
    // A100 data sheet: BF16 312 | 624*.
    {"NVIDIA A100-SXM4-40GB", {312 * kTera, std::nullopt}},
    {"NVIDIA A100-SXM4-80GB", {312 * kTera, std::nullopt}},
    {"NVIDIA A100-PCIE-40GB", {312 * kTera, std::nullopt}},
    {"NVIDIA A100 80GB PCIe", {312 * kTera, std::nullopt}},
    // H100 Tensor Core GPU Architecture, table 2: SXM5 BF16 989.4, FP8 1978.9; PCIe 756, 1513.
    {"NVIDIA H100 80GB HBM3", {989 * kTera, 1979 * kTera}},
    {"NVIDIA H100 PCIe", {756 * kTera, 1513 * kTera}},
    // H100 data sheet: NVL BF16 1671*, FP8 3341*.
    {"NVIDIA H100 NVL", {835 * kTera, 1670 * kTera}},
    // H200 data sheet: SXM BF16 1979*, FP8 3958*; NVL 1671*, 3341*.
    {"NVIDIA H200", {989 * kTera, 1979 * kTera}},
    {"NVIDIA H200 NVL", {835 * kTera, 1670 * kTera}},
    // Blackwell data sheets: HGX B200 BF16 4500*, FP8 9000* a GPU; GB200 5000*, 10000*.
    {"NVIDIA B200", {2250 * kTera, 4500 * kTera}},
    {"NVIDIA GB200", {2500 * kTera, 5000 * kTera}},
    // L4 data sheet: BF16 242*, FP8 485*; L40S: 362 | 733*, 733 | 1466*.
    {"NVIDIA L4", {121 * kTera, 242 * kTera}},
    {"NVIDIA L40S", {362 * kTera, 733 * kTera}},
    // MI300X and MI325X data sheets: FP16 and BF16 1.3 PFLOP/s, FP8 2614.9 TFLOP/s.
    {"AMD Instinct MI300X", {1300 * kTera, 2614.9 * kTera}},
    {"AMD Instinct MI325X", {1300 * kTera, 2614.9 * kTera}},
    // MI350X and MI355X data sheets: BF16 2.3 and 2.5 PFLOP/s, FP8 4.6 and 5.0.
    {"AMD Instinct MI350X", {2300 * kTera, 4600 * kTera}},
    {"AMD Instinct MI355X", {2500 * kTera, 5000 * kTera}},
};
}  // namespace internal

/// The dense peak rates of a product by the exact name its driver reports (cudaDeviceProp.name,
/// hipDeviceProp_t.name): an H100 PCIe is not an SXM. A name that is not in the table, the CPU's
/// too, gives none: MFU is then "n/a", never another product's.
constexpr std::optional<PeakRates> peak_rates(std::string_view product) {
  for (const internal::ProductPeakRates& row : internal::kProductPeakRates) {
    if (row.product == product) return row.rates;
  }
  return std::nullopt;
}

}  // namespace octavo
