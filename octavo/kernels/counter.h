#pragma once

#include <atomic>
#include <cstdint>

namespace octavo::kernels {

/// Counts of kernel launches since the process began, one per kernel family. Tests take
/// differences to prove that a linear calls exactly the kernels it should; nothing else reads them.
struct Counters {
  std::atomic<std::uint64_t> amax{0};        ///< passes that only read (amax before a cast)
  std::atomic<std::uint64_t> quantize{0};    ///< passes that write FP8, one or two layouts each
  std::atomic<std::uint64_t> decode{0};      ///< FP8 operands widened for a reference product
  std::atomic<std::uint64_t> epilogue{0};    ///< scale, bias and rounding of a reference product
  std::atomic<std::uint64_t> column_sum{0};  ///< bias gradients
};

Counters& counters();

}  // namespace octavo::kernels
