#include "octavo/kernels/gpu/gradient_norm.h"

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/packed.h"
#include "octavo/kernels/gpu/platform.h"
#include "octavo/kernels/gpu/tensor_table.h"

namespace octavo::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;             // elements a thread reads at a time
constexpr int kVectorsPerThread = 16;  // each of eight fp32 sums adds up this many squares
constexpr int kBatch = 4;              // vectors loaded before the first is used
constexpr std::int64_t kPerBlock = std::int64_t{kThreads} * kVector * kVectorsPerThread;
static_assert(kPerBlock == 32768);

constexpr int kSumThreads = 1024;

struct Params {
  const void* data[kGradientsPerLaunch];
  std::int64_t size[kGradientsPerLaunch];
  std::uint32_t first_block[kGradientsPerLaunch + 1];  // of each tensor, and the end
  DType dtype[kGradientsPerLaunch];
  int count;
  double* partial;  // of the launch's first block
};
static_assert(sizeof(Params) <= 4096);

OCTAVO_DEVICE double shuffle_xor_double(double value, int mask) {
  const auto bits = __builtin_bit_cast(std::uint64_t, value);
  const std::uint64_t low = shuffle_xor(static_cast<std::uint32_t>(bits), mask);
  const std::uint64_t high = shuffle_xor(static_cast<std::uint32_t>(bits >> 32), mask);
  return __builtin_bit_cast(double, low | high << 32);
}

// The sum over the block in thread 0, by a tree.
template <int Threads>
OCTAVO_DEVICE double sum_over_block(double value) {
  constexpr int kGroups = Threads / 32;
  __shared__ double groups[kGroups];
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor_double(value, mask);
  if (threadIdx.x % 32 == 0) groups[threadIdx.x / 32] = value;
  __syncthreads();
#pragma unroll
  for (int half = kGroups / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) groups[threadIdx.x] += groups[threadIdx.x + half];
    __syncthreads();
  }
  return groups[0];
}

// The thread's share of the block's elements.
template <DType T>
OCTAVO_DEVICE double sum_of_squares(const void* data, std::int64_t size, std::int64_t block) {
  constexpr int kBytes = T == DType::kFP32 ? 4 : 2;
  const std::int64_t first = block * kPerBlock;
  const std::int64_t mine = first + threadIdx.x * kVector;
  const char* const base = static_cast<const char*>(data);
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  float sum[kVector] = {};
  const auto add = [&](const Vec8<T>& v) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum[j] = fma_rn(v[j], v[j], sum[j]);
  };
  if (aligned && first + kPerBlock <= size) {
#pragma unroll 1
    for (int k = 0; k < kVectorsPerThread; k += kBatch) {
      Vec8<T> v[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        v[b].load_streaming(base + (mine + std::int64_t{k + b} * kThreads * kVector) * kBytes);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) add(v[b]);
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < kVectorsPerThread; ++k) {
      const std::int64_t i = mine + std::int64_t{k} * kThreads * kVector;
      if (i >= size) break;
      Vec8<T> v;
      if (aligned && i + kVector <= size) {
        v.load_streaming(base + i * kBytes);
      } else {
        v.gather(base + i * kBytes, kBytes,
                 size - i < kVector ? static_cast<int>(size - i) : kVector);
      }
      add(v);  // absent elements are zeros
    }
  }
  double total = 0.0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) total += static_cast<double>(sum[j]);
  return total;
}

__global__ void OCTAVO_LAUNCH_BOUNDS(kThreads, 4) gradient_norm_kernel(const Params p) {
  const int index = tensor_of_block(p.first_block, p.count);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x - p.first_block[index]);
  const void* const data = p.data[index];
  const std::int64_t size = p.size[index];
  double mine = 0.0;
  switch (p.dtype[index]) {
    case DType::kBF16:
      mine = sum_of_squares<DType::kBF16>(data, size, block);
      break;
    case DType::kFP16:
      mine = sum_of_squares<DType::kFP16>(data, size, block);
      break;
    case DType::kFP32:
      mine = sum_of_squares<DType::kFP32>(data, size, block);
      break;
  }
  const double total = sum_over_block<kThreads>(mine);
  if (threadIdx.x == 0) p.partial[blockIdx.x] = total;
}

// One block.
__global__ void OCTAVO_LAUNCH_BOUNDS(kSumThreads, 1)
    gradient_norm_root_kernel(const double* partial, std::int64_t count, float* norm) {
  constexpr int kSums = 4;  // independent ones: the loads of four overlap
  double sum[kSums] = {};
  for (std::int64_t i = threadIdx.x; i < count; i += kSums * kSumThreads) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const std::int64_t at = i + std::int64_t{j} * kSumThreads;
      sum[j] += at < count ? partial[at] : 0.0;
    }
  }
  const double total = sum_over_block<kSumThreads>((sum[0] + sum[1]) + (sum[2] + sum[3]));
  if (threadIdx.x == 0) norm[0] = static_cast<float>(square_root_rn(total));
}

}  // namespace

std::int64_t gradient_norm_partials(const GradientTensor* tensors, std::int64_t count) {
  std::int64_t blocks = 0;
  for (std::int64_t i = 0; i < count; ++i) blocks += ceil_div(tensors[i].size, kPerBlock);
  return blocks;
}

void gradient_norm(const GradientNormArgs& args, Stream stream) {
  const auto native = static_cast<NativeStream>(stream);
  Params p{};
  p.partial = args.partial;
  const auto launch = [&] {
    const unsigned blocks = p.first_block[p.count];
    if (blocks > 0) gradient_norm_kernel<<<blocks, kThreads, 0, native>>>(p);
    p.partial += blocks;
    p.count = 0;
  };
  for (std::int64_t i = 0; i < args.count; ++i) {
    const GradientTensor& tensor = args.tensors[i];
    if (tensor.size == 0) continue;
    p.data[p.count] = tensor.data;
    p.size[p.count] = tensor.size;
    p.dtype[p.count] = tensor.dtype;
    p.first_block[p.count + 1] =
        p.first_block[p.count] + static_cast<std::uint32_t>(ceil_div(tensor.size, kPerBlock));
    if (++p.count == kGradientsPerLaunch) launch();
  }
  launch();
  gradient_norm_root_kernel<<<1, kSumThreads, 0, native>>>(
      args.partial, gradient_norm_partials(args.tensors, args.count), args.norm);
}

}  // namespace octavo::gpu
