#include "octavo/quantize/amax.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <mutex>

#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/amax.h"
#include "octavo/quantize/split.h"

namespace octavo {
namespace {

using kernels::ConstMatrix;

// The kernel wants contiguous rows: others are gathered one at a time.
template <class Bits>
float amax_of_gathered_rows(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                            float* row_amax, std::uint32_t* column_bits) {
  std::vector<Bits> row(static_cast<std::size_t>(x.columns));
  ConstMatrix gathered = x;
  gathered.data = row.data();
  gathered.rows = 1;
  gathered.column_stride = 1;
  float whole = 0;
  for (std::int64_t r = begin; r < end; ++r) {
    const Bits* from = static_cast<const Bits*>(x.data) + r * x.row_stride;
    for (std::int64_t c = 0; c < x.columns; ++c) {
      row[static_cast<std::size_t>(c)] = from[c * x.column_stride];
    }
    const float amax =
        kernels::amax(gathered, 0, 1, row_amax == nullptr ? nullptr : row_amax + r, column_bits);
    whole = kernels::larger_magnitude(whole, amax);
  }
  return whole;
}

float amax_of_rows(const ConstMatrix& x, std::int64_t begin, std::int64_t end, float* row_amax,
                   std::uint32_t* column_bits) {
  if (x.column_stride == 1) return kernels::amax(x, begin, end, row_amax, column_bits);
  return kernels::bytes_of(x.type) == 4
             ? amax_of_gathered_rows<std::uint32_t>(x, begin, end, row_amax, column_bits)
             : amax_of_gathered_rows<std::uint16_t>(x, begin, end, row_amax, column_bits);
}

}  // namespace

Amax amax_pass(const ConstMatrix& matrix, const AmaxSpec& spec) {
  Amax out;
  if (spec.rows) out.rows.resize(static_cast<std::size_t>(matrix.rows));
  if (spec.columns) out.columns.resize(static_cast<std::size_t>(matrix.columns));
  if (matrix.rows == 0 || matrix.columns == 0) return out;
  ++kernels::counters().amax;

  const ConstMatrix x = spec.rows || spec.columns ? matrix : as_long_rows(matrix);
  std::vector<std::uint32_t> column_bits(out.columns.size());
  std::mutex mutex;
  at::parallel_for(0, x.rows, grain(x.columns), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint32_t> own_bits(column_bits.size());
    const float whole = amax_of_rows(x, begin, end, spec.rows ? out.rows.data() : nullptr,
                                     spec.columns ? own_bits.data() : nullptr);
    const std::lock_guard lock(mutex);
    out.whole = kernels::larger_magnitude(out.whole, whole);
    for (std::size_t c = 0; c < own_bits.size(); ++c) {
      column_bits[c] = std::max(column_bits[c], own_bits[c]);
    }
  });
  std::transform(column_bits.begin(), column_bits.end(), out.columns.begin(),
                 [&](std::uint32_t bits) { return kernels::value_of(x.type, bits); });
  return out;
}

}  // namespace octavo
