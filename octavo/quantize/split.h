#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/kernels/matrix.h"

namespace octavo {

/// Elements below which a second thread costs more than it saves: about 10 us of work.
inline constexpr std::int64_t kElementsPerTask = 32768;

/// Grain for at::parallel_for over items of `elements` elements each.
inline std::int64_t grain(std::int64_t elements) {
  return std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, elements));
}

/// A matrix without gaps, seen as few long rows where its own are short and its size allows: for
/// passes to which rows mean nothing. Other matrices come back as they are.
inline kernels::ConstMatrix as_long_rows(kernels::ConstMatrix x) {
  if (x.column_stride != 1 || x.row_stride != x.columns) return x;
  while (x.columns < 4096 && x.rows % 2 == 0) {
    x.columns *= 2;
    x.rows /= 2;
  }
  x.row_stride = x.columns;
  return x;
}

}  // namespace octavo
