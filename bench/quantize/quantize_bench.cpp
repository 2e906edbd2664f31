// quantize_operand() at the demo's sizes, where what does not grow with the matrix counts.

#include "octavo/quantize/quantize.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

namespace octavo {
namespace {

constexpr Granularity kGranularities[] = {
    Granularity::tensorwise(),    Granularity::rowwise(), Granularity::block_1x128(),
    Granularity::block_128x128(), Granularity::mx_1x32(),
};

// Arguments: rows, columns, index of the granularity, both layouts or rows only.
void quantize(benchmark::State& state) {
  at::set_num_threads(1);
  at::manual_seed(1);
  const at::Tensor x = at::randn({state.range(0), state.range(1)});
  const LayoutSpec layout{.granularity = kGranularities[state.range(2)]};
  OperandSpec spec{.rows = layout};
  if (state.range(3)) spec.transposed = layout;
  for (auto _ : state) benchmark::DoNotOptimize(quantize_operand(x, spec));
  state.SetItemsProcessed(state.iterations() * x.numel());
  state.SetLabel(to_string(layout.granularity) + (state.range(3) ? ", both" : ", rows"));
}

BENCHMARK(quantize)
    ->ArgsProduct({{2048}, {128, 768}, {0, 1, 2, 3, 4}, {0, 1}})
    ->Args({64, 64, 1, 1})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace octavo
