// GPU quantisers against the copy rate of the same process.
//
// One table: kernel, shape, microseconds, GB/s counting the fewest bytes the method needs for a
// bf16 element, and the share of the best copy measured on the same shape. Events, medians,
// three rotated inputs. Usage: bench_gpu_quantize
// [repetitions [groups]]; groups: the lines by groups alone

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "octavo/kernels/gpu/amax.h"
#include "octavo/kernels/gpu/cast.h"
#include "octavo/kernels/gpu/group_tiles.h"
#include "octavo/kernels/gpu/quantize_block.h"
#include "octavo/kernels/gpu/quantize_mx.h"
#include "octavo/kernels/gpu/quantize_row.h"

namespace octavo::gpu {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK_CUDA(call) check((call), #call)

constexpr int kInputs = 3;

double median_ms(int repetitions, const std::function<void(int)>& run) {
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  for (int i = 0; i < kInputs; ++i) run(i);
  std::vector<float> times;
  for (int i = 0; i < repetitions; ++i) {
    CHECK_CUDA(cudaEventRecord(begin));
    run(i % kInputs);
    CHECK_CUDA(cudaEventRecord(end));
    CHECK_CUDA(cudaEventSynchronize(end));
    float ms = 0.0f;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void bench(std::int64_t M, std::int64_t K, int repetitions,
           const std::vector<std::uint16_t>& values) {
  const std::int64_t n = M * K;
  std::uint16_t* x[kInputs];
  for (auto& p : x) {
    CHECK_CUDA(cudaMalloc(&p, 2 * n));
    for (std::int64_t at = 0; at < n; at += static_cast<std::int64_t>(values.size())) {
      const std::int64_t count = std::min<std::int64_t>(n - at, values.size());
      CHECK_CUDA(cudaMemcpy(p + at, values.data(), 2 * count, cudaMemcpyHostToDevice));
    }
  }
  std::uint8_t *q, *codes;
  float *amaxes, *scales;
  CHECK_CUDA(cudaMalloc(&q, 2 * n));
  CHECK_CUDA(cudaMalloc(&amaxes, 4 * (M + K + 1)));
  CHECK_CUDA(cudaMalloc(&scales, 4 * (M * (K / 128 + 1) + K * (M / 128 + 1))));
  CHECK_CUDA(cudaMalloc(&codes, 2 * (n / 32 + M + K)));
  std::uint8_t* qt = q + n;
  float *row = amaxes, *column = amaxes + M, *tensor = amaxes + M + K;
  float *row_scale = scales, *column_scale = scales + M * (K / 128 + 1);
  zero_amax(amaxes, M + K + 1, nullptr);
  const auto in = [&](int i) { return Matrix{x[i], DType::kBF16, M, K, K, 1}; };

  double copy_rate = 0.0;
  const auto report = [&](const char* name, double bytes_per_element,
                          const std::function<void(int)>& run) {
    const double ms = median_ms(repetitions, run);
    const double rate = bytes_per_element * static_cast<double>(n) / ms / 1e6;
    if (copy_rate == 0.0) copy_rate = rate;
    std::printf("%-34s %6ldx%-6ld %8.1f us %6.0f GB/s %6.1f%%\n", name, static_cast<long>(M),
                static_cast<long>(K), 1e3 * ms, rate, 100.0 * rate / copy_rate);
    std::fflush(stdout);
  };

  report("copy (cudaMemcpyAsync)", 4,
         [&](int i) { CHECK_CUDA(cudaMemcpyAsync(q, x[i], 2 * n, cudaMemcpyDeviceToDevice)); });
  report("amax tensor", 2, [&](int i) { amax({in(i), tensor, nullptr, nullptr}, nullptr); });
  report("amax row", 2, [&](int i) { amax({in(i), nullptr, row, nullptr}, nullptr); });
  report("amax column", 2, [&](int i) { amax({in(i), nullptr, nullptr, column}, nullptr); });
  report("amax row + column", 2, [&](int i) { amax({in(i), nullptr, row, column}, nullptr); });
  report("rows: rowwise, one pass", 3, [&](int i) {
    quantize_row({in(i), q, row_scale}, nullptr);
  });
  const CastLayout by_row{q, row, CastScales::kLines, row_scale},
      by_column{qt, column, CastScales::kLines, column_scale};
  const CastLayout whole{q, tensor, CastScales::kTensor, row_scale},
      whole_t{qt, tensor, CastScales::kTensor, column_scale};
  report("rows: cast, tensor scale", 3, [&](int i) { cast({.x = in(i), .rows = whole}, nullptr); });
  report("transposed: cast, column scales", 3,
         [&](int i) { cast({.x = in(i), .transposed = by_column}, nullptr); });
  report("both: cast, row + column scales", 4,
         [&](int i) { cast({.x = in(i), .rows = by_row, .transposed = by_column}, nullptr); });
  report("both: cast, tensor scale", 4,
         [&](int i) { cast({.x = in(i), .rows = whole, .transposed = whole_t}, nullptr); });
  report("both: 1x128 + 128x1", 4, [&](int i) {
    quantize_block(
        {.x = in(i), .rows = {q, row_scale, 1, M}, .transposed = {qt, column_scale, 1, K}},
        nullptr);
  });
  report("both: 128x128", 4, [&](int i) {
    quantize_block({.x = in(i),
                    .rows = {q, row_scale, K / 128, 1},
                    .transposed = {qt, column_scale, M / 128, 1},
                    .shape = BlockShape::k128x128},
                   nullptr);
  });
  for (const bool tiled : {false, true}) {
    report(tiled ? "both: MX 1x32, 128x4 scales" : "both: MX 1x32, plain scales", 4, [&](int i) {
      quantize_mx({.x = in(i),
                   .rows = {q, codes},
                   .transposed = {qt, codes + n / 32 + M},
                   .scale_layout = tiled ? MxScaleLayout::kTiled128x4 : MxScaleLayout::kPlain},
                  nullptr);
    });
  }
  report("rows: MX 1x32", 3, [&](int i) {
    quantize_mx({.x = in(i), .rows = {q, codes}}, nullptr);
  });
  report("rows: 1x128", 3, [&](int i) {
    quantize_block({.x = in(i), .rows = {q, row_scale, 1, M}}, nullptr);
  });
  report("both: rowwise from scratch", 6, [&](int i) {
    zero_amax(amaxes, M + K, nullptr);
    amax({in(i), nullptr, row, column}, nullptr);
    cast({.x = in(i), .rows = by_row, .transposed = by_column}, nullptr);
  });
  report("both: tensorwise from scratch", 6, [&](int i) {
    zero_amax(tensor, 1, nullptr);
    amax({in(i), tensor, nullptr, nullptr}, nullptr);
    cast({.x = in(i), .rows = whole, .transposed = whole_t}, nullptr);
  });
  for (auto* p : x) CHECK_CUDA(cudaFree(p));
  CHECK_CUDA(cudaFree(q));
  CHECK_CUDA(cudaFree(codes));
  CHECK_CUDA(cudaFree(amaxes));
  CHECK_CUDA(cudaFree(scales));
}

// Activations by groups of uneven sizes, and experts' weights (E, N, K), N = M / E rows each.
void bench_groups(std::int64_t M, std::int64_t K, std::int64_t E, int repetitions,
                  const std::vector<std::uint16_t>& values) {
  const std::int64_t n = M * K;
  std::uint16_t* x[kInputs];
  for (auto& p : x) {
    CHECK_CUDA(cudaMalloc(&p, 2 * n));
    for (std::int64_t at = 0; at < n; at += static_cast<std::int64_t>(values.size())) {
      const std::int64_t count = std::min<std::int64_t>(n - at, values.size());
      CHECK_CUDA(cudaMemcpy(p + at, values.data(), 2 * count, cudaMemcpyHostToDevice));
    }
  }
  std::mt19937 random(7);
  std::vector<double> share(E);
  double all = 0;
  for (double& s : share) all += s = 0.25 + static_cast<double>(random() % 1000) / 1000;
  std::vector<std::int32_t> ends(E);
  double so_far = 0;
  for (std::int64_t g = 0; g < E; ++g) {
    so_far += share[g];
    ends[g] = static_cast<std::int32_t>(static_cast<double>(M) * so_far / all);
  }
  ends[E - 1] = static_cast<std::int32_t>(M);
  const std::int64_t widest = M + 128 * E + 128;
  std::int32_t *offs, *clamped;
  std::uint8_t *q, *qt, *scales;
  GroupTile* tiles;
  float* amaxes;
  const std::int64_t amax_count = M + E * K + E;
  CHECK_CUDA(cudaMalloc(&offs, 4 * E));
  CHECK_CUDA(cudaMalloc(&clamped, 8 * E));
  CHECK_CUDA(cudaMalloc(&q, 2 * n));
  CHECK_CUDA(cudaMalloc(&qt, widest * K));
  CHECK_CUDA(cudaMalloc(&scales, 4 * (amax_count + M * (K / 32 + 1) + K * (widest / 32))));
  CHECK_CUDA(cudaMalloc(&tiles, sizeof(GroupTile) * group_tile_count(widest, E)));
  CHECK_CUDA(cudaMalloc(&amaxes, 4 * amax_count));
  CHECK_CUDA(cudaMemcpy(offs, ends.data(), 4 * E, cudaMemcpyHostToDevice));
  const auto in = [&](int i) { return Matrix{x[i], DType::kBF16, M, K, K, 1}; };
  auto* const row_scale = reinterpret_cast<float*>(scales);
  float *row = amaxes, *column = amaxes + M;
  const auto plan = [&](int alignment, std::int64_t zeros) -> Groups {
    const std::int64_t columns = (M + alignment - 1) / alignment * alignment + E * alignment;
    plan_groups({.offs = offs,
                 .groups = E,
                 .rows = M,
                 .alignment = alignment,
                 .columns = columns,
                 .ends = clamped,
                 .aligned_ends = clamped + E,
                 .tiles = tiles,
                 .zero = amaxes,
                 .zero_count = zeros},
                nullptr);
    return {
        .count = E, .tiles = tiles, .tile_count = group_tile_count(columns, E), .columns = columns};
  };
  double copy_rate = 0.0;
  const auto report = [&](const char* name, double bytes_per_element,
                          const std::function<void(int)>& run) {
    const double ms = median_ms(repetitions, run);
    const double rate = bytes_per_element * static_cast<double>(n) / ms / 1e6;
    if (copy_rate == 0.0) copy_rate = rate;
    std::printf("%-34s %6ldx%-5ld E=%-3ld %8.1f us %6.0f GB/s %6.1f%%\n", name,
                static_cast<long>(M), static_cast<long>(K), static_cast<long>(E), 1e3 * ms, rate,
                100.0 * rate / copy_rate);
    std::fflush(stdout);
  };
  report("copy (cudaMemcpyAsync)", 4,
         [&](int i) { CHECK_CUDA(cudaMemcpyAsync(q, x[i], 2 * n, cudaMemcpyDeviceToDevice)); });
  report("groups: plan alone, 0 bytes", 0, [&](int) { plan(16, amax_count); });
  const CastLayout by_row{q, row, CastScales::kLines, row_scale},
      by_column{qt, column, CastScales::kLines, row_scale + M};
  report("groups: row + column amax", 2, [&](int i) {
    const Groups groups = plan(16, amax_count);
    amax({.x = in(i), .row = row, .column = column, .groups = groups}, nullptr);
  });
  report("groups: row + column scales", 6, [&](int i) {
    const Groups groups = plan(16, amax_count);
    amax({.x = in(i), .row = row, .column = column, .groups = groups}, nullptr);
    cast({.x = in(i), .rows = by_row, .transposed = by_column, .groups = groups}, nullptr);
  });
  report("groups: column scales alone", 5, [&](int i) {
    const Groups groups = plan(16, amax_count);
    amax({.x = in(i), .column = column, .groups = groups}, nullptr);
    cast({.x = in(i), .transposed = by_column, .groups = groups}, nullptr);
  });
  report("groups: 1x128 + 128x1", 4, [&](int i) {
    const Groups groups = plan(128, 0);
    quantize_block({.x = in(i),
                    .rows = {q, row_scale, 1, M},
                    .transposed = {qt, row_scale + M * (K / 128 + 1), 1, K},
                    .groups = groups},
                   nullptr);
  });
  report("groups: MX 1x32, plain scales", 4, [&](int i) {
    const Groups groups = plan(32, 0);
    quantize_mx({.x = in(i),
                 .rows = {q, scales},
                 .transposed = {qt, scales + M * (K / 32 + 1)},
                 .groups = groups},
                nullptr);
  });
  report("weights: row + column scales", 6, [&](int i) {
    Matrix w = in(i);
    w.rows = M / E;
    const Groups groups{.count = E, .stride = w.rows * K};
    zero_amax(amaxes, M + E * K, nullptr);
    amax({.x = w, .row = row, .column = column, .groups = groups}, nullptr);
    cast({.x = w, .rows = by_row, .transposed = by_column, .groups = groups}, nullptr);
  });
  for (auto* p : x) CHECK_CUDA(cudaFree(p));
  for (void* p : {static_cast<void*>(offs), static_cast<void*>(clamped), static_cast<void*>(q),
                  static_cast<void*>(qt), static_cast<void*>(scales), static_cast<void*>(tiles),
                  static_cast<void*>(amaxes)}) {
    CHECK_CUDA(cudaFree(p));
  }
}

}  // namespace
}  // namespace octavo::gpu

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 31;
  std::vector<std::uint16_t> values(16 * 1024 * 1024 - 3);
  std::mt19937 random(1);
  for (auto& v : values) v = static_cast<std::uint16_t>((random() & 0x81FF) | 0x3E00);
  cudaDeviceProp device;
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    std::fprintf(stderr, "bench_gpu_quantize: no GPU on this machine\n");
    return 2;
  }
  std::printf("%s, %d repetitions, bf16 in, e4m3fn out; bytes counted: the fewest of the method\n",
              device.name, repetitions);
  for (const auto& [M, K] :
       {std::pair{16384, 4096}, {16384, 14336}, {32768, 7168}, {4096, 14336}, {4096, 2048}}) {
    if (argc <= 2) octavo::gpu::bench(M, K, repetitions, values);
  }
  const std::int64_t groups[][3] = {
      {32768, 7168, 8}, {32768, 7168, 32}, {16384, 5120, 16}, {49152, 2048, 64}};
  for (const auto& [M, K, E] : groups) {
    octavo::gpu::bench_groups(M, K, E, repetitions, values);
  }
}
