// One training step of a linear (forward, dx, dw) in fp32 and in each recipe, same sizes and
// threads: the ratio of two lines is what a recipe costs on the CPU.
#include "octavo/ops/float8_linear.h"

#include <ATen/Functions.h>
#include <benchmark/benchmark.h>

namespace octavo {
namespace {

void step(benchmark::State& state, const char* recipe_text) {
  const std::int64_t m = state.range(0), k = state.range(1), n = state.range(2);
  const at::Tensor x = at::randn({m, k}).set_requires_grad(true);
  const at::Tensor w = at::randn({n, k}).set_requires_grad(true);
  const at::Tensor dy = at::randn({m, n});
  std::optional<Recipe> recipe;
  if (recipe_text != nullptr) recipe = Recipe::parse(recipe_text);
  for (auto _ : state) {
    const at::Tensor y = recipe ? float8_linear(x, w, std::nullopt, *recipe) : at::linear(x, w);
    y.backward(dy);
    x.mutable_grad().reset();
    w.mutable_grad().reset();
  }
  state.SetItemsProcessed(state.iterations() * 6 * m * n * k);
}

void linear_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m", "k", "n"})->UseRealTime()->MeasureProcessCPUTime();
  bench->Args({2048, 64, 64})->Args({2048, 128, 128})->Args({2048, 128, 384});
  bench->Args({2048, 256, 256})->Args({2048, 256, 768})->Args({2048, 768, 256});
  bench->Args({2048, 1024, 1024});
}

BENCHMARK_CAPTURE(step, high_precision, nullptr)->Apply(linear_sizes);
BENCHMARK_CAPTURE(step, tensorwise, "tensorwise")->Apply(linear_sizes);
BENCHMARK_CAPTURE(step, rowwise, "rowwise")->Apply(linear_sizes);
BENCHMARK_CAPTURE(step, rowwise_with_gw_hp, "rowwise_with_gw_hp")->Apply(linear_sizes);
BENCHMARK_CAPTURE(step, blockwise, "blockwise")->Apply(linear_sizes);
BENCHMARK_CAPTURE(step, mxfp8, "mxfp8")->Apply(linear_sizes);

}  // namespace
}  // namespace octavo
