#pragma once

#include <cstdint>
#include <string>

namespace octavo::app {

/// What `octavo bench quantize` measures.
struct BenchQuantizeOptions {
  std::int64_t rows = 4096;     ///< M, a multiple of 128
  std::int64_t columns = 4096;  ///< K, a multiple of 128
  std::string dtype = "bf16";   ///< bf16, fp16 or fp32
  int threads = 0;              ///< 0: torch's own choice
  int repetitions = 9;          ///< timed runs of each expression; medians are reported
  std::string only;             ///< pairs whose name holds this text; empty: all of them
  bool json = false;            ///< one JSON object on standard output instead of a table
};

/// Times quantize_operand() for every granularity, rows only, transposed only and both layouts,
/// against the same mathematics as eager torch operators and against a copy of x, all in one
/// process, alternating; medians.
///
/// Prints for each: nanoseconds per element, GB/s (x as often as it is read, plus the bytes and
/// scales written), that rate over the copy's, and the eager expression's time over ours. Errors:
/// sizes that are no multiples of 128, an unknown dtype, no repetition, an `only` that no name
/// holds (lists the names).
void bench_quantize(const BenchQuantizeOptions& options);

}  // namespace octavo::app
