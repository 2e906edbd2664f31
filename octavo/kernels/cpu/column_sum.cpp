#include "octavo/kernels/cpu/column_sum.h"

#include <algorithm>

namespace octavo::kernels::cpu {
namespace {

constexpr std::int64_t kStripe = 64;  // columns whose sums stay in registers and the first cache

template <HighPrecision kType, class Bits>
void stripe_sum(const ConstMatrix& x, const Bits* first, std::int64_t width, float* out) {
  float total[kStripe] = {};
  for (std::int64_t begin = 0; begin < x.rows; begin += kColumnSumRun) {
    const std::int64_t end = std::min(x.rows, begin + kColumnSumRun);
    float run[kStripe] = {};
    for (std::int64_t m = begin; m < end; ++m) {
      const Bits* row = first + m * x.row_stride;
      if (x.column_stride == 1 && width == kStripe) {
        // A constant trip count is what gcc needs to vectorise at -O2.
        for (std::int64_t k = 0; k < kStripe; ++k) run[k] += value_of(kType, row[k]);
      } else {
        for (std::int64_t k = 0; k < width; ++k) {
          run[k] += value_of(kType, row[k * x.column_stride]);
        }
      }
    }
    for (std::int64_t k = 0; k < width; ++k) total[k] += run[k];
  }
  std::copy_n(total, width, out);
}

template <HighPrecision kType, class Bits>
void sum(const ConstMatrix& x, float* out, std::int64_t column_begin, std::int64_t column_end) {
  const Bits* data = static_cast<const Bits*>(x.data);
  for (std::int64_t k = column_begin; k < column_end; k += kStripe) {
    stripe_sum<kType>(x, data + k * x.column_stride, std::min(kStripe, column_end - k), out + k);
  }
}

}  // namespace

void column_sum(const ConstMatrix& x, float* out, std::int64_t column_begin,
                std::int64_t column_end) {
  switch (x.type) {
    case HighPrecision::kFloat32:
      return sum<HighPrecision::kFloat32, std::uint32_t>(x, out, column_begin, column_end);
    case HighPrecision::kBFloat16:
      return sum<HighPrecision::kBFloat16, std::uint16_t>(x, out, column_begin, column_end);
    case HighPrecision::kFloat16:
      return sum<HighPrecision::kFloat16, std::uint16_t>(x, out, column_begin, column_end);
  }
}

}  // namespace octavo::kernels::cpu
