#pragma once

#include <cstdint>
#include <vector>

#include "octavo/kernels/matrix.h"

namespace octavo {

/// Which largest magnitudes one pass over a matrix should find; that of the whole matrix is free.
struct AmaxSpec {
  bool rows = false;
  bool columns = false;
};

/// Largest magnitudes of x (M, K): NaN where a NaN is, 0 where there is nothing.
struct Amax {
  float whole = 0;
  std::vector<float> rows;     ///< (M) if asked for
  std::vector<float> columns;  ///< (K) if asked for
};

/// One pass over x, which may have any strides, split over the threads by rows. Adds 1 to
/// kernels::counters().amax, unless x is empty. The same result for any number of threads.
Amax amax_pass(const kernels::ConstMatrix& x, const AmaxSpec& spec);

}  // namespace octavo
