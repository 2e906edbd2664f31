#pragma once

#include "octavo/kernels/gpu/amax.h"
#include "operands.h"

namespace octavo::gpu::testing {

/// A WrittenAmax on the device, [tensor | rows | columns], zero.
struct AmaxBuffer {
  std::int64_t rows, columns;
  DeviceBuffer floats;

  AmaxBuffer(std::int64_t m, std::int64_t k)
      : rows(m), columns(k), floats(static_cast<std::size_t>(4 * (1 + m + k))) {
    floats.zero();
  }
  WrittenAmax wanted(bool tensor, bool row, bool column) const {
    float* const first = floats.get<float>();
    return {tensor ? first : nullptr, row ? first + 1 : nullptr,
            column ? first + 1 + rows : nullptr};
  }
  /// Of the matrix that was written, zeros where not wanted.
  std::vector<float> expected(DType dtype, const DeviceBuffer& written,
                              const WrittenAmax& wanted) const {
    std::vector<std::uint32_t> bits;
    if (dtype == DType::kFP32) {
      bits = written.download<std::uint32_t>();
    } else {
      for (std::uint16_t b : written.download<std::uint16_t>()) bits.push_back(b);
    }
    std::vector<float> want(static_cast<std::size_t>(1 + rows + columns), 0.0f);
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::int64_t k = 0; k < columns; ++k) {
        const float x = to_float(dtype, bits[static_cast<std::size_t>(m * columns + k)]);
        const auto add = [&](std::int64_t i, bool asked) {
          float& amax = want[static_cast<std::size_t>(i)];
          if (asked) amax = amax_of(amax, x);
        };
        add(0, wanted.tensor);
        add(1 + m, wanted.row);
        add(1 + rows + k, wanted.column);
      }
    }
    return want;
  }
};

}  // namespace octavo::gpu::testing
