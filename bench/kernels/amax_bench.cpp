// amax alone, one thread, every target. bytes_per_second is what it reads.
#include "octavo/kernels/cpu/amax.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "octavo/kernels/cpu/targets.h"

namespace octavo::kernels {
namespace {

enum Wanted { kWhole, kRows, kRowsAndColumns };

// Arguments: rows, columns, element type, what is wanted, target (its place in cpu_targets()).
void amax_of(benchmark::State& state) {
  const std::int64_t rows = state.range(0), columns = state.range(1);
  const auto type = static_cast<HighPrecision>(state.range(2));
  const std::vector<std::uint8_t> x(static_cast<std::size_t>(rows * columns * bytes_of(type)), 42);
  const ConstMatrix view{x.data(), type, rows, columns, columns, 1};
  std::vector<float> row_amax(static_cast<std::size_t>(rows));
  std::vector<std::uint32_t> column_bits(static_cast<std::size_t>(columns));
  const std::int64_t target = cpu_targets()[static_cast<std::size_t>(state.range(4))];
  use_cpu_target(target);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        amax(view, 0, rows, state.range(3) >= kRows ? row_amax.data() : nullptr,
             state.range(3) == kRowsAndColumns ? column_bits.data() : nullptr));
    benchmark::ClobberMemory();
  }
  use_cpu_target(0);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(x.size()));
  state.SetLabel(cpu_target_name(target));
}

void amax_cases(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "columns", "type", "wanted", "target"});
  for (std::size_t target = 0; target < cpu_targets().size(); ++target) {
    for (int type : {0, 1}) {
      for (int wanted : {kWhole, kRows, kRowsAndColumns}) {
        bench->Args({2048, 128, type, wanted, static_cast<std::int64_t>(target)});
        bench->Args({4096, 4096, type, wanted, static_cast<std::int64_t>(target)});
      }
    }
  }
}

BENCHMARK(amax_of)->Apply(amax_cases);

}  // namespace
}  // namespace octavo::kernels
