#include "octavo/kernels/gpu/cross_entropy.h"

#include "octavo/kernels/gpu/packed.h"
#include "octavo/kernels/gpu/platform.h"

namespace octavo::gpu {
namespace {

constexpr unsigned kThreads = 1024;

constexpr float kLog2E = 1.44269504088896341f;

// exp(x - max) as 2^(x log2 e + offset), two instructions where expf has about ten: with expf the
// kernel waits for arithmetic and not for memory. Where all is -Inf so far, 0 and not NaN.
OCTAVO_DEVICE float offset_of(float max) { return max == -__builtin_inff() ? 0.0f : -max * kLog2E; }
OCTAVO_DEVICE float power(float x, float offset) { return exp2_fast(fma_rn(x, kLog2E, offset)); }

// A running maximum and the sum of exp(value - maximum).
struct LogSum {
  float max = -__builtin_inff(), sum = 0.0f;

  // NaN is in no maximum: the sum takes it, and keeps it.
  template <int N>
  OCTAVO_DEVICE void add(const float (&values)[N]) {
    float larger = max;
#pragma unroll
    for (int i = 0; i < N; ++i) larger = __builtin_fmaxf(larger, values[i]);  // NaN: in the sum
    if (larger > max) {
      sum *= power(max, offset_of(larger));
      max = larger;
    }
    const float offset = offset_of(max);
    float part = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) part += power(values[i], offset);
    sum += part;
  }
  OCTAVO_DEVICE void merge(float other_max, float other_sum) {
    const float larger = __builtin_fmaxf(max, other_max);  // no maximum is NaN
    const auto part = [larger](float m, float s) {
      return m == larger ? s : s * power(m, offset_of(larger));
    };
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

// Eight values or one, at a feature of the row.
template <DType T, int Width>
OCTAVO_DEVICE void load(const char* address, float (&x)[Width]) {
  if constexpr (Width == 1) {
    x[0] = load1<T>(address);
  } else {
    Vec8<T> packed;
    packed.load(address);
#pragma unroll
    for (int i = 0; i < Width; ++i) x[i] = packed[i];
  }
}

// Width 8: rows are 16-byte aligned and V a multiple of 8.
template <DType T, int Width>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(const CrossEntropyArgs p) {
  constexpr int kBytes = Packed<T>::kHalfWords ? 2 : 4;
  constexpr int kStep = kThreads * Width;
  const std::int64_t m = blockIdx.x;
  char* row = static_cast<char*>(p.logits) + m * p.columns * kBytes;
  float x[Width];
  LogSum mine;
#pragma unroll 2
  for (std::int64_t v = threadIdx.x * Width; v < p.columns; v += kStep) {
    load<T>(row + v * kBytes, x);
    mine.add(x);
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
  const float offset = offset_of(all.max);
  const auto gradient = [&](float value, std::int64_t v) {
    const float g = power(value, offset) * scale;
    return v == target ? g - p.gradient_scale : g;
  };
  // Backwards: what was read last is in the L2 cache still, the beginnings of all rows at work are
  // more than it holds.
  const std::int64_t steps = (p.columns + kStep - 1) / kStep;
#pragma unroll 2
  for (std::int64_t step = steps - 1; step >= 0; --step) {
    const std::int64_t v = step * kStep + threadIdx.x * Width;
    if (v >= p.columns) continue;
    load<T>(row + v * kBytes, x);
#pragma unroll
    for (int i = 0; i < Width; ++i) x[i] = gradient(x[i], v + i);
    if constexpr (Width == 1) {
      store1<T>(row + v * kBytes, x[0]);
    } else {
      store8<T>(row + v * kBytes, x);
    }
  }
}

template <DType T>
void launch(const CrossEntropyArgs& args, NativeStream stream) {
  const bool vector =
      args.columns % 8 == 0 && reinterpret_cast<std::uintptr_t>(args.logits) % 16 == 0;
  const auto rows = static_cast<unsigned>(args.rows);
  if (vector) {
    cross_entropy_kernel<T, 8><<<rows, kThreads, 0, stream>>>(args);
  } else {
    cross_entropy_kernel<T, 1><<<rows, kThreads, 0, stream>>>(args);
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
