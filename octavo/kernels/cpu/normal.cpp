#include "octavo/kernels/cpu/normal.h"

#include <algorithm>

#include "octavo/kernels/host_arithmetic.h"

namespace octavo::kernels {

void fill_normal(const NormalSource& source, HighPrecision type, void* data, std::int64_t begin,
                 std::int64_t end) {
  for (std::int64_t block = begin / 4; block * 4 < end; ++block) {
    float value[4];
    normal_values<HostArithmetic>(source, static_cast<std::uint64_t>(block), value);
    const std::int64_t first = std::max(begin, block * 4), last = std::min(end, block * 4 + 4);
    for (std::int64_t i = first; i < last; ++i) {
      const float x = value[i - block * 4];
      if (type == HighPrecision::kFloat32) {
        static_cast<float*>(data)[i] = x;
      } else {
        static_cast<std::uint16_t*>(data)[i] = bfloat16_bits(x);
      }
    }
  }
}

}  // namespace octavo::kernels
