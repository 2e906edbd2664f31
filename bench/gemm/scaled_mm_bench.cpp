// The reference product against at::mm in fp32 on operands of the same sizes, the three products
// of a linear each. Run both on an idle machine and compare the lines of one size.
#include "octavo/gemm/scaled_mm.h"

#include <ATen/Functions.h>
#include <benchmark/benchmark.h>

#include "octavo/quantize/quantize.h"

namespace octavo {
namespace {

ScaledTensor operand(std::int64_t rows, std::int64_t columns, const Granularity& granularity) {
  OperandSpec spec;
  spec.rows = LayoutSpec{.granularity = granularity};
  return quantize_operand(at::randn({rows, columns}), spec).rows;
}

void scaled_mm_of(benchmark::State& state, Granularity a, Granularity b, at::ScalarType out_dtype) {
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const ScaledTensor x = operand(m, k, a), w = operand(n, k, b);
  for (auto _ : state) {
    benchmark::DoNotOptimize(scaled_mm(x, w, {.out_dtype = out_dtype}));
  }
  state.SetItemsProcessed(state.iterations() * 2 * m * n * k);
}

void mm_fp32(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const at::Tensor x = at::randn({m, k}), w = at::randn({n, k});
  for (auto _ : state) benchmark::DoNotOptimize(at::mm(x, w.t()));
  state.SetItemsProcessed(state.iterations() * 2 * m * n * k);
}

// (M, N, K) as the product sees them: forward, dx and dw of small linears at 2048 tokens.
void product_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m", "n", "k"})->UseRealTime();
  bench->Args({2048, 128, 128})->Args({128, 128, 2048});
  bench->Args({2048, 768, 256})->Args({2048, 256, 768})->Args({768, 256, 2048});
  bench->Args({16, 16, 16});  // the cost of a call
}

constexpr Granularity kTensor = Granularity::tensorwise(), kRow = Granularity::rowwise();

BENCHMARK(mm_fp32)->Apply(product_sizes);
BENCHMARK_CAPTURE(scaled_mm_of, rowwise_fp32, kRow, kRow, at::kFloat)->Apply(product_sizes);
BENCHMARK_CAPTURE(scaled_mm_of, tensorwise_fp32, kTensor, kTensor, at::kFloat)
    ->Apply(product_sizes);
BENCHMARK_CAPTURE(scaled_mm_of, rowwise_bf16, kRow, kRow, at::kBFloat16)->Apply(product_sizes);
BENCHMARK_CAPTURE(scaled_mm_of, blockwise_fp32, Granularity::block_1x128(),
                  Granularity::block_128x128(), at::kFloat)
    ->Apply(product_sizes);
BENCHMARK_CAPTURE(scaled_mm_of, mxfp8_fp32, Granularity::mx_1x32(), Granularity::mx_1x32(),
                  at::kFloat)
    ->Apply(product_sizes);

}  // namespace
}  // namespace octavo
