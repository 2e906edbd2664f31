// AdamW's step and the gradients' norm against the copy rate of the same process.
//
// One line for each types: microseconds, GB/s counting every byte read and written once, and the
// share of the best copy. 111 tensors of a Llama with 97 million parameters, of ordinary numbers
// and of zeros (rows of an embedding that no token used). Events, medians. Usage: bench_gpu_adamw
// [repetitions]

#include "octavo/kernels/gpu/adamw.h"

#include <cuda_runtime.h>

#include "octavo/kernels/gpu/gradient_norm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace octavo::gpu {
namespace {

#define CHECK_CUDA(call)                                                  \
  do {                                                                    \
    const cudaError_t error = (call);                                     \
    if (error != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

float median_ms(int repetitions, const std::function<void()>& run) {
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) run();
  std::vector<float> times;
  for (int i = 0; i < repetitions; ++i) {
    CHECK_CUDA(cudaEventRecord(begin));
    run();
    CHECK_CUDA(cudaEventRecord(end));
    CHECK_CUDA(cudaEventSynchronize(end));
    float ms = 0.0f;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  CHECK_CUDA(cudaGetLastError());
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

int main_of(int repetitions) {
  std::vector<std::int64_t> sizes = {256 * 768, 256 * 768, 768};
  for (int layer = 0; layer < 12; ++layer) {
    for (std::int64_t size : {768 * 768, 256 * 768, 256 * 768, 768 * 768, 2816 * 768, 2816 * 768,
                              2816 * 768, 768, 768}) {
      sizes.push_back(size);
    }
  }
  std::int64_t count = 0;
  for (std::int64_t size : sizes) count += size;

  char* memory[5];  // parameter, master, gradient, moments
  for (char*& p : memory) CHECK_CUDA(cudaMalloc(&p, 4 * count));
  struct Scalars {
    double lr = 1e-3;
    float clip = 1.0f, step = 1.0f;
  } host, *scalars;
  CHECK_CUDA(cudaMalloc(&scalars, sizeof(Scalars)));
  CHECK_CUDA(cudaMemcpy(scalars, &host, sizeof(Scalars), cudaMemcpyHostToDevice));

  const float copy_ms = median_ms(repetitions, [&] {
    CHECK_CUDA(cudaMemcpyAsync(memory[0], memory[1], 4 * count, cudaMemcpyDeviceToDevice));
  });
  const double copy_rate = 8.0 * static_cast<double>(count) / copy_ms / 1e6;
  std::printf("%-46s %8.1f us %6.0f GB/s\n", "copy", 1e3 * copy_ms, copy_rate);
  constexpr auto k32 = kernels::HighPrecision::kFloat32, k16 = kernels::HighPrecision::kBFloat16;
  struct Row {
    const char* name;
    kernels::AdamwTypes types;
    int bytes;
    int fill = 0x3C;  // 0.0115 in fp32 and in bf16
  };
  for (const Row& row : {Row{"fp32 everything", {k32, k32, k32, false}, 28},
                         Row{"bf16 everything", {k16, k16, k16, false}, 14},
                         Row{"bf16 everything, zeros", {k16, k16, k16, false}, 14, 0},
                         Row{"bf16, fp32 master and moments", {k16, k16, k32, true}, 28}}) {
    for (char* p : memory) CHECK_CUDA(cudaMemset(p, row.fill, 4 * count));
    std::vector<kernels::AdamwTensor> tensors;
    std::int64_t begin = 0;
    for (std::int64_t size : sizes) {
      const auto at = [&](int i, kernels::HighPrecision type) {
        return memory[i] + begin * kernels::bytes_of(type);
      };
      tensors.push_back(
          {.parameter = at(0, row.types.parameter),
           .master = row.types.has_master ? reinterpret_cast<float*>(at(1, k32)) : nullptr,
           .gradient = at(2, row.types.gradient),
           .exp_avg = at(3, row.types.moments),
           .exp_avg_sq = at(4, row.types.moments),
           .step = &scalars->step,
           .size = size,
           .weight_decay = 0.1});
      begin += size;
    }
    const float ms = median_ms(repetitions, [&] {
      adamw({.tensors = tensors.data(),
             .count = static_cast<std::int64_t>(tensors.size()),
             .types = row.types,
             .options = {},
             .lr = &scalars->lr,
             .clip = &scalars->clip},
            nullptr);
    });
    const double rate = row.bytes * static_cast<double>(count) / ms / 1e6;
    std::printf("%-46s %8.1f us %6.0f GB/s %6.1f%%\n", row.name, 1e3 * ms, rate,
                100.0 * rate / copy_rate);
  }
  for (const DType dtype : {DType::kBF16, DType::kFP32}) {
    std::vector<GradientTensor> tensors;
    std::int64_t begin = 0;
    for (std::int64_t size : sizes) {
      tensors.push_back({memory[2] + begin * bytes_of(dtype), size, dtype});
      begin += size;
    }
    const auto number = static_cast<std::int64_t>(tensors.size());
    // The scratch of 97 million parameters is far smaller than a parameter's memory.
    const float ms = median_ms(repetitions, [&] {
      gradient_norm({.tensors = tensors.data(),
                     .count = number,
                     .partial = reinterpret_cast<double*>(memory[3]),
                     .norm = reinterpret_cast<float*>(memory[4])},
                    nullptr);
    });
    const double rate = bytes_of(dtype) * static_cast<double>(count) / ms / 1e6;
    std::printf("%-46s %8.1f us %6.0f GB/s %6.1f%%\n",
                dtype == DType::kBF16 ? "norm of bf16 gradients" : "norm of fp32 gradients",
                1e3 * ms, rate, 100.0 * rate / copy_rate);
  }
  return 0;
}

}  // namespace
}  // namespace octavo::gpu

int main(int argc, char** argv) { return octavo::gpu::main_of(argc > 1 ? std::atoi(argv[1]) : 50); }
