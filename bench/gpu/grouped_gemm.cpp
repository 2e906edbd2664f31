// Grouped FP8 products of mixture-of-experts shapes, groups of uneven sizes.
//
// One line a product: forward (rows), weight gradient (dw), with fast and with full accumulation,
// in TFLOP/s; 2*M*N*K operations whatever the groups. Sizes are Dirichlet(4) draws, not multiples
// of 16. Each figure is the median of runs of three products with the GPU already at work, so at
// the clock that its power limit leaves it for these values. Usage: bench_gpu_grouped_gemm
// [repetitions]

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

double median_ms(int repetitions, const std::function<const char*()>& run) {
  constexpr int kBefore = 2, kRuns = 3;
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  const auto go = [&] {
    if (const char* wrong = run()) {
      std::fprintf(stderr, "%s\n", wrong);
      std::exit(1);
    }
  };
  std::vector<float> times;
  for (int i = 0; i < repetitions; ++i) {
    for (int r = 0; r < kBefore; ++r) go();
    CHECK_CUDA(cudaEventRecord(begin));
    for (int r = 0; r < kRuns; ++r) go();
    CHECK_CUDA(cudaEventRecord(end));
    CHECK_CUDA(cudaEventSynchronize(end));
    float ms = 0.0f;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms / kRuns);
  }
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void bench(const char* name, std::int64_t M, std::int64_t K, std::int64_t N, int E,
           int repetitions) {
  std::mt19937 random(1);
  std::gamma_distribution<double> gamma(4.0);
  std::vector<double> shares(static_cast<std::size_t>(E));
  double all = 0.0;
  for (auto& s : shares) all += s = gamma(random);
  std::vector<std::int32_t> ends, aligned;
  std::int32_t end_aligned = 0;
  double sum = 0.0;
  for (int e = 0; e < E; ++e) {
    sum += shares[static_cast<std::size_t>(e)];
    const auto begin = ends.empty() ? 0 : ends.back();
    ends.push_back(e == E - 1 ? static_cast<std::int32_t>(M)
                              : static_cast<std::int32_t>(static_cast<double>(M) * sum / all));
    aligned.push_back(end_aligned += (ends.back() - begin + 15) / 16 * 16);
  }
  const std::int64_t Mt = (M + 15) / 16 * 16 + 16 * E;
  auto* a = random_bytes(std::max(N, K) * Mt, random);
  auto* b = random_bytes(std::max(std::int64_t{E} * N * K, std::max(N, K) * Mt), random);
  auto* scales = ones(std::max(M, E * std::max(N, K)));
  auto* out = allocate<std::uint16_t>(std::max(M * std::max(N, K), E * N * K));
  auto* offs = allocate<std::int32_t>(2 * E);
  CHECK_CUDA(cudaMemcpy(offs, ends.data(), ends.size() * 4, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(offs + E, aligned.data(), aligned.size() * 4, cudaMemcpyHostToDevice));
  const auto report = [&](const char* what, const std::function<const char*(Accumulation)>& run) {
    double rate[2];
    for (int i = 0; i < 2; ++i) {
      const auto how = i ? Accumulation::kFull : Accumulation::kFast;
      const double ms = median_ms(repetitions, [&] { return run(how); });
      rate[i] = 2.0 * static_cast<double>(M) * static_cast<double>(N * K) / ms / 1e9;
    }
    std::printf("%-16s %-22s fast %6.0f   full %6.0f TFLOP/s\n", name, what, rate[0], rate[1]);
    std::fflush(stdout);
  };
  const auto rows = [&](const char* what, std::int64_t columns, std::int64_t contraction) {
    report(what, [=](Accumulation how) {
      return grouped_gemm_rows({a, b, scales, scales, offs, out, M, columns, contraction, E, how},
                               nullptr);
    });
  };
  rows("rows, M x K . N x K", N, K);
  rows("rows, M x N . K x N", K, N);
  report("dw, N x M . K x M", [=](Accumulation how) {
    return grouped_gemm_k({a, b, scales, scales, offs + E, out, N, K, Mt, E, how}, nullptr);
  });
  for (void* p : {static_cast<void*>(a), static_cast<void*>(b), static_cast<void*>(scales),
                  static_cast<void*>(out), static_cast<void*>(offs)}) {
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
