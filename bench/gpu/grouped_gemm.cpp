// Grouped FP8 products of mixture-of-experts shapes, groups of uneven sizes.
//
// One line a product: forward (rows), weight gradient (dw), in TFLOP/s: with fast accumulation,
// the same with tiles handed out by a counter, with full accumulation (counter), and with block
// scales (counter); 2*M*N*K operations whatever the groups. Sizes are Dirichlet(4) draws, not
// multiples of 16. Each figure is the median of runs of three products with the GPU already at
// work, so at the clock that its power limit leaves it for these values. Usage:
// bench_gpu_grouped_gemm [repetitions]

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "octavo/formats/codec.h"
#include "octavo/kernels/gpu/grouped_gemm.h"

namespace octavo::gpu {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK_CUDA(call) check((call), #call)

template <class T>
T* allocate(std::int64_t count) {
  T* pointer;
  CHECK_CUDA(cudaMalloc(&pointer, static_cast<std::size_t>(count) * sizeof(T)));
  return pointer;
}

/// Normal values of standard deviation 100, as quantisation to e4m3fn leaves them.
std::uint8_t* random_bytes(std::int64_t count, std::mt19937& random) {
  static const std::vector<std::uint8_t> values = [&] {
    std::normal_distribution<float> normal(0.0f, 100.0f);
    std::vector<std::uint8_t> v(16 * 1024 * 1024 - 3);
    for (auto& b : v) b = encode(Format::kE4M3FN, normal(random), Overflow::kSaturate);
    return v;
  }();
  auto* bytes = allocate<std::uint8_t>(count);
  const auto size = static_cast<std::int64_t>(values.size());
  for (std::int64_t at = 0; at < count; at += size) {
    CHECK_CUDA(cudaMemcpy(bytes + at, values.data(),
                          static_cast<std::size_t>(std::min(count - at, size)),
                          cudaMemcpyHostToDevice));
  }
  return bytes;
}

float* ones(std::int64_t count) {
  auto* scales = allocate<float>(count);
  const std::vector<float> values(static_cast<std::size_t>(count), 1.0f);
  CHECK_CUDA(cudaMemcpy(scales, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  return scales;
}

/// Medians of each of `runs`, which take turns.
std::vector<double> median_ms(int repetitions,
                              const std::vector<std::function<const char*()>>& runs) {
  constexpr int kBefore = 2, kRuns = 3;
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<std::vector<float>> times(runs.size());
  for (int i = 0; i < repetitions; ++i) {
    for (std::size_t which = 0; which < runs.size(); ++which) {
      const auto go = [&] {
        if (const char* wrong = runs[which]()) {
          std::fprintf(stderr, "%s\n", wrong);
          std::exit(1);
        }
      };
      for (int r = 0; r < kBefore; ++r) go();
      CHECK_CUDA(cudaEventRecord(begin));
      for (int r = 0; r < kRuns; ++r) go();
      CHECK_CUDA(cudaEventRecord(end));
      CHECK_CUDA(cudaEventSynchronize(end));
      float ms = 0.0f;
      CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
      times[which].push_back(ms / kRuns);
    }
  }
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  std::vector<double> medians;
  for (auto& of_one : times) {
    std::nth_element(of_one.begin(), of_one.begin() + of_one.size() / 2, of_one.end());
    medians.push_back(of_one[of_one.size() / 2]);
  }
  return medians;
}

enum Variant { kFast, kCounter, kFull, kBlocks };

void bench(const char* name, std::int64_t M, std::int64_t K, std::int64_t N, int E,
           int repetitions) {
  std::mt19937 random(1);
  std::gamma_distribution<double> gamma(4.0);
  std::vector<double> shares(static_cast<std::size_t>(E));
  double all = 0.0;
  for (auto& s : shares) all += s = gamma(random);
  std::vector<std::int32_t> ends, aligned, blocks;
  std::int32_t end_aligned = 0, end_blocks = 0;
  double sum = 0.0;
  for (int e = 0; e < E; ++e) {
    sum += shares[static_cast<std::size_t>(e)];
    const auto begin = ends.empty() ? 0 : ends.back();
    ends.push_back(e == E - 1 ? static_cast<std::int32_t>(M)
                              : static_cast<std::int32_t>(static_cast<double>(M) * sum / all));
    aligned.push_back(end_aligned += (ends.back() - begin + 15) / 16 * 16);
    blocks.push_back(end_blocks += (ends.back() - begin + 127) / 128 * 128);
  }
  const std::int64_t Mt = (M + 15) / 16 * 16 + 16 * E, Mb = (M + 127) / 128 * 128 + 128 * E;
  auto* a = random_bytes(std::max(N, K) * Mb, random);
  auto* b = random_bytes(std::max(std::int64_t{E} * N * K, std::max(N, K) * Mb), random);
  auto* scales = ones(std::max(E * std::max(N, K), Mb * (std::max(N, K) / 128 + 1)));
  auto* counter = allocate<std::int32_t>(1);
  CHECK_CUDA(cudaMemset(counter, 0, 4));
  auto* out = allocate<std::uint16_t>(std::max(M * std::max(N, K), E * N * K));
  auto* offs = allocate<std::int32_t>(3 * E);
  CHECK_CUDA(cudaMemcpy(offs, ends.data(), ends.size() * 4, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(offs + E, aligned.data(), aligned.size() * 4, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(offs + 2 * E, blocks.data(), blocks.size() * 4, cudaMemcpyHostToDevice));
  const auto report = [&](const char* what, const std::function<const char*(Variant)>& run) {
    std::vector<std::function<const char*()>> runs;
    for (const Variant v : {kFast, kCounter, kFull, kBlocks})
      runs.push_back([&, v] { return run(v); });
    std::vector<double> rate = median_ms(repetitions, runs);
    for (double& r : rate) r = 2.0 * static_cast<double>(M) * static_cast<double>(N * K) / r / 1e9;
    std::printf("%-16s %-22s fast %6.0f   counter %6.0f   full %6.0f   blocks %6.0f TFLOP/s\n",
                name, what, rate[0], rate[1], rate[2], rate[3]);
    std::fflush(stdout);
  };
  const auto of = [=](auto args, Variant v) {
    args.accumulation = v == kFull ? Accumulation::kFull : Accumulation::kFast;
    if (v != kFast) args.counter = counter;
    if (v == kBlocks) args.scaling = Scaling::kBlocks;
    return args;
  };
  const auto rows = [&](const char* what, std::int64_t columns, std::int64_t contraction) {
    report(what, [=](Variant v) {
      GroupedGemmRowsArgs args{
          a, b, scales, scales, offs, out, M, columns, contraction, E, Accumulation::kFast};
      args.a_block = M, args.b_row = (contraction / 128 + 4) / 4 * 4;
      args.b_group = args.b_row * ((columns + 127) / 128);
      return grouped_gemm_rows(of(args, v), nullptr);
    });
  };
  rows("rows, M x K . N x K", N, K);
  rows("rows, M x N . K x N", K, N);
  report("dw, N x M . K x M", [=](Variant v) {
    const bool in_blocks = v == kBlocks;
    GroupedGemmKArgs args{a,
                          b,
                          scales,
                          scales,
                          offs + (in_blocks ? 2 : 1) * E,
                          out,
                          N,
                          K,
                          in_blocks ? Mb : Mt,
                          E,
                          Accumulation::kFast};
    args.a_block = N, args.b_block = K;
    return grouped_gemm_k(of(args, v), nullptr);
  });
  for (void* p : {static_cast<void*>(a), static_cast<void*>(b), static_cast<void*>(scales),
                  static_cast<void*>(out), static_cast<void*>(offs), static_cast<void*>(counter)}) {
    CHECK_CUDA(cudaFree(p));
  }
}

}  // namespace
}  // namespace octavo::gpu

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 15;
  cudaDeviceProp device;
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    std::fprintf(stderr, "bench_gpu_grouped_gemm: no GPU on this machine\n");
    return 2;
  }
  std::printf("%s, %d repetitions, e4m3fn in, bf16 out\n", device.name, repetitions);
  using octavo::gpu::bench;
  bench("DeepSeek-V3 E8", 32768, 7168, 2048, 8, repetitions);
  bench("DeepSeek-V3 E32", 32768, 7168, 2048, 32, repetitions);
  bench("Llama-4 E2", 16384, 5120, 8192, 2, repetitions);
  bench("Llama-4 E16", 16384, 5120, 8192, 16, repetitions);
  bench("DeepSeek-16B E64", 49152, 2048, 1408, 64, repetitions);
}
