#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>
#include <string>

namespace octavo::app {

/// What the device does at best, measured in this process: what the floors are computed from.
struct MachineRates {
  double copy = 0;  ///< bytes/s read and written by a large copy_()
  double bf16 = 0;  ///< FLOP/s of a large BF16 product; 0: not measured
  double fp8 = 0;   ///< FLOP/s of the same product, tensorwise, fast accumulation; 0: not measured

  /// Seconds for moving `bytes` and then multiplying. A product's own operands stream beside its
  /// arithmetic and are in its rate.
  double floor_seconds(double bytes, double fp8_operations = 0, double bf16_operations = 0) const;
  std::string text() const;  ///< "copy 4120 GB/s, BF16 product 702 TFLOP/s, ..."
  nlohmann::ordered_json json() const;
};

enum class RatesOf : std::uint8_t { kCopy, kCopyAndProducts };

/// A copy of 1 GiB and products of 8192 x 8192 x 8192; on the CPU 16 MiB and 256 x 256 x 256.
MachineRates measure_rates(c10::Device device, int repetitions, RatesOf what);

}  // namespace octavo::app
