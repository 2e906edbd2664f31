#include "octavo/kernels/gpu/cross_entropy.h"

#include "octavo/kernels/gpu/packed.h"
#include "octavo/kernels/gpu/platform.h"

namespace octavo::gpu {
namespace {

constexpr unsigned kThreads = 1024;

// A running maximum and the sum of exp(value - maximum).
struct LogSum {
  float max = -__builtin_inff(), sum = 0.0f;

  // NaN in either stays: it is in no comparison's favour, so the sum takes it.
  OCTAVO_DEVICE void add(float value) {
    if (value > max) {
      sum = sum * expf(max - value) + 1.0f;
      max = value;
    } else {
      sum += value == max ? 1.0f : expf(value - max);
    }
  }
  OCTAVO_DEVICE void merge(float other_max, float other_sum) {
    const float larger = other_max > max ? other_max : max;
    const auto part = [larger](float m, float s) { return m == larger ? s : s * expf(m - larger); };
    sum = part(max, sum) + part(other_max, other_sum);
    max = larger;
  }
};

OCTAVO_DEVICE float from_lane(float value, int mask) {
  return internal::float_of(shuffle_xor(internal::bits_of(value), mask));
}

// The whole row's, in every thread.
OCTAVO_DEVICE LogSum merge_block(LogSum mine) {
  __shared__ float max[kThreads / 32], sum[kThreads / 32];
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
    mine.merge(from_lane(mine.max, mask), from_lane(mine.sum, mask));
  }
  if (threadIdx.x % 32 == 0) max[threadIdx.x / 32] = mine.max, sum[threadIdx.x / 32] = mine.sum;
  __syncthreads();
  LogSum all;
  for (unsigned i = 0; i < kThreads / 32; ++i) all.merge(max[i], sum[i]);
  return all;
}

template <DType T>
OCTAVO_DEVICE float load1(const char* address) {
  if constexpr (T == DType::kFP32) return *reinterpret_cast<const float*>(address);
  return Packed<T>::to_float(*reinterpret_cast<const std::uint16_t*>(address));
}

template <DType T>
OCTAVO_DEVICE void store1(char* address, float value) {
  if constexpr (T == DType::kFP32) {
    *reinterpret_cast<float*>(address) = value;
  } else {
    const std::uint32_t word = T == DType::kBF16 ? to_bf16x2(value, 0.0f) : to_fp16x2(value, 0.0f);
    *reinterpret_cast<std::uint16_t*>(address) = static_cast<std::uint16_t>(word);
  }
}

// Vector: rows are 16-byte aligned and V a multiple of 8.
template <DType T, bool Vector>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(const CrossEntropyArgs p) {
  constexpr int kBytes = Packed<T>::kHalfWords ? 2 : 4;
  constexpr int kWidth = Vector ? 8 : 1;
  const std::int64_t m = blockIdx.x;
  char* row = static_cast<char*>(p.logits) + m * p.columns * kBytes;
  LogSum mine;
  for (std::int64_t v = threadIdx.x * kWidth; v < p.columns; v += kThreads * kWidth) {
    if constexpr (Vector) {
      Vec8<T> x;
      x.load(row + v * kBytes);
#pragma unroll
      for (int i = 0; i < 8; ++i) mine.add(x[i]);
    } else {
      mine.add(load1<T>(row + v * kBytes));
    }
  }
  const LogSum all = merge_block(mine);
  const std::int64_t target = p.target[m];
  const bool known = target >= 0 && target < p.columns;
  if (threadIdx.x == 0) {
    p.loss[m] =
        known ? all.max - load1<T>(row + target * kBytes) + logf(all.sum) : __builtin_nanf("");
  }
  if (!p.writes_gradient) return;
  __syncthreads();  // the target's logit has been read
  const float scale = known ? p.gradient_scale / all.sum : __builtin_nanf("");
  const auto gradient = [&](float x, std::int64_t v) {
    const float g = expf(x - all.max) * scale;
    return v == target ? g - p.gradient_scale : g;
  };
  for (std::int64_t v = threadIdx.x * kWidth; v < p.columns; v += kThreads * kWidth) {
    if constexpr (Vector) {
      Vec8<T> x;
      x.load(row + v * kBytes);
      float g[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = gradient(x[i], v + i);
      store8<T>(row + v * kBytes, g);
    } else {
      store1<T>(row + v * kBytes, gradient(load1<T>(row + v * kBytes), v));
    }
  }
}

template <DType T>
void launch(const CrossEntropyArgs& args, NativeStream stream) {
  const bool vector =
      args.columns % 8 == 0 && reinterpret_cast<std::uintptr_t>(args.logits) % 16 == 0;
  const auto rows = static_cast<unsigned>(args.rows);
  if (vector) {
    cross_entropy_kernel<T, true><<<rows, kThreads, 0, stream>>>(args);
  } else {
    cross_entropy_kernel<T, false><<<rows, kThreads, 0, stream>>>(args);
  }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, Stream stream) {
  if (args.rows == 0) return;
  const auto native = static_cast<NativeStream>(stream);
  switch (args.dtype) {
    case DType::kBF16:
      return launch<DType::kBF16>(args, native);
    case DType::kFP16:
      return launch<DType::kFP16>(args, native);
    case DType::kFP32:
      return launch<DType::kFP32>(args, native);
  }
}

}  // namespace octavo::gpu
