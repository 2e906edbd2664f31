// Decoding alone, one thread. items_per_second is elements per second: 10 G/s is 0.1 ns each.
#include "octavo/kernels/cpu/decode.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "octavo/formats/codec.h"

namespace octavo::kernels {
namespace {

// Finite bytes: NaN sends its 32 neighbours through the scalar codec.
std::vector<std::uint8_t> finite_bytes(std::int64_t size, Format format) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::uint8_t>(i * 37 + (i >> 8));
    const float value = decode(format, bytes[i]);
    if (!(value - value == 0)) bytes[i] = 1;
  }
  return bytes;
}

void decode_matrix(benchmark::State& state, ScaleKind kind, std::int64_t block_columns) {
  const std::int64_t rows = state.range(0), columns = state.range(1);
  const Format format = static_cast<Format>(state.range(2));
  const auto data = finite_bytes(rows * columns, format);
  std::vector<float> out(static_cast<std::size_t>(rows * columns));
  const std::int64_t blocks = (columns + block_columns - 1) / block_columns;
  const std::vector<float> scales(static_cast<std::size_t>(rows * blocks), 1.5f);
  const std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * blocks), 127);
  const DecodeArgs args{
      .data = data.data(),
      .row_stride = columns,
      .columns = columns,
      .format = format,
      .out = out.data(),
      .out_row_stride = columns,
      .scale_kind = kind,
      .scale = kind == ScaleKind::kE8M0 ? static_cast<const void*>(codes.data()) : scales.data(),
      .scale_row_stride = blocks,
      .scale_column_stride = 1,
      .block_rows = 1,
      .block_columns = block_columns};
  for (auto _ : state) {
    decode_rows(args, 0, rows);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * columns);
}

void decode_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "columns", "format"});
  for (int format = 0; format < 4; ++format) bench->Args({2048, 256, format});
  bench->Args({32, 32, 0})->Args({128, 128, 0})->Args({2048, 127, 0})->Args({2048, 2048, 0});
}

BENCHMARK_CAPTURE(decode_matrix, unscaled, ScaleKind::kNone, 128)->Apply(decode_sizes);
BENCHMARK_CAPTURE(decode_matrix, blocks_1x128, ScaleKind::kFloat, 128)->Apply(decode_sizes);
BENCHMARK_CAPTURE(decode_matrix, mx_1x32, ScaleKind::kE8M0, 32)->Apply(decode_sizes);

}  // namespace
}  // namespace octavo::kernels
