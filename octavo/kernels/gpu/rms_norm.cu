#include "octavo/kernels/gpu/rms_norm.h"

#include "octavo/kernels/gpu/packed.h"
#include "octavo/kernels/gpu/platform.h"

namespace octavo::gpu {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kThreadsOfOne = 256;  // at most, where a thread has one item of a row

constexpr int max_threads(int items) { return items == 1 ? kThreadsOfOne : kMaxThreads; }
constexpr std::int64_t kMaxColumns = 16384;

// The block's sum, in every thread and by the same tree for any value.
OCTAVO_DEVICE float block_sum(float mine) {
  __shared__ float partial[kMaxThreads / 32];
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
    mine += internal::float_of(shuffle_xor(internal::bits_of(mine), mask));
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();
  float sum = 0.0f;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += partial[i];
  __syncthreads();  // partial is free for the next sum
  return sum;
}

template <DType T>
OCTAVO_DEVICE void load_as_floats(float (&v)[8], const void* base, std::int64_t column) {
  Vec8<T> words;
  words.load(static_cast<const char*>(base) + column * (Packed<T>::kHalfWords ? 2 : 4));
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = words[i];
}

// Eight weights, of a type of their own.
OCTAVO_DEVICE void load_weights(float (&v)[8], const void* w, DType dtype, std::int64_t column) {
  if (dtype == DType::kFP32) return load_as_floats<DType::kFP32>(v, w, column);
  if (dtype == DType::kBF16) return load_as_floats<DType::kBF16>(v, w, column);
  load_as_floats<DType::kFP16>(v, w, column);
}

// Where thread t's item i of a row begins; past the row's end where it has none.
OCTAVO_DEVICE std::int64_t column_of(int item) {
  return (threadIdx.x + item * static_cast<std::int64_t>(blockDim.x)) * 8;
}

template <DType T, int Items>
__global__ void __launch_bounds__(max_threads(Items)) rms_norm_kernel(const RmsNormArgs p) {
  constexpr int kBytes = Packed<T>::kHalfWords ? 2 : 4;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * p.columns * kBytes;
  const auto at = [&](const void* base, std::int64_t column) {
    return static_cast<const char*>(base) + row + column * kBytes;
  };
  float h[Items][8];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const std::int64_t column = column_of(i);
    if (column >= p.columns) continue;
    Vec8<T> x;
    x.load_streaming(at(p.x, column));
#pragma unroll
    for (int j = 0; j < 8; ++j) h[i][j] = x[j];
    if (p.residual != nullptr) {
      Vec8<T> residual;
      residual.load_streaming(at(p.residual, column));
#pragma unroll
      for (int j = 0; j < 8; ++j) h[i][j] += residual[j];
      char* out = static_cast<char*>(p.h) + row + column * kBytes;
      store8<T>(out, h[i]);
      // What is normalised is what was stored.
      Vec8<T> rounded;
      rounded.load(out);
#pragma unroll
      for (int j = 0; j < 8; ++j) h[i][j] = rounded[j];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += h[i][j] * h[i][j];
  }
  const float mean = block_sum(squares) / static_cast<float>(p.columns);
  const float rstd = 1.0f / sqrtf(mean + p.eps);
  if (threadIdx.x == 0) p.rstd[blockIdx.x] = rstd;
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const std::int64_t column = column_of(i);
    if (column >= p.columns) continue;
    float w[8], y[8];
    load_weights(w, p.w, p.w_dtype, column);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = h[i][j] * rstd * w[j];
    store8<T>(static_cast<char*>(p.y) + row + column * kBytes, y);
  }
}

template <DType T, int Items>
__global__ void __launch_bounds__(max_threads(Items))
    rms_norm_backward_kernel(const RmsNormBackwardArgs p) {
  constexpr int kBytes = Packed<T>::kHalfWords ? 2 : 4;
  float w[Items][8], dw[Items][8];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const std::int64_t column = column_of(i);
#pragma unroll
    for (int j = 0; j < 8; ++j) dw[i][j] = 0.0f;
    if (column < p.columns) load_weights(w[i], p.w, p.w_dtype, column);
  }
  for (std::int64_t m = blockIdx.x; m < p.rows; m += kRmsNormBlocks) {
    const std::int64_t row = m * p.columns * kBytes;
    const float rstd = p.rstd[m];
    Vec8<T> dy[Items], h[Items];
    float products = 0.0f;
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      const std::int64_t column = column_of(i);
      if (column >= p.columns) continue;
      dy[i].load_streaming(static_cast<const char*>(p.dy) + row + column * kBytes);
      h[i].load_streaming(static_cast<const char*>(p.h) + row + column * kBytes);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        products += dy[i][j] * w[i][j] * h[i][j];
        dw[i][j] += dy[i][j] * (h[i][j] * rstd);
      }
    }
    const float c = block_sum(products) * (rstd * rstd * rstd) / static_cast<float>(p.columns);
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      const std::int64_t column = column_of(i);
      if (column >= p.columns) continue;
      float dx[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) dx[j] = dy[i][j] * w[i][j] * rstd - h[i][j] * c;
      if (p.dh != nullptr) {
        Vec8<T> dh;
        dh.load_streaming(static_cast<const char*>(p.dh) + row + column * kBytes);
#pragma unroll
        for (int j = 0; j < 8; ++j) dx[j] += dh[j];
      }
      store8<T>(static_cast<char*>(p.dx) + row + column * kBytes, dx);
    }
  }
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const std::int64_t column = column_of(i);
    if (column < p.columns) {
      store8<DType::kFP32>(p.partial + blockIdx.x * p.columns + column, dw[i]);
    }
  }
}

// dw from the blocks' partial sums: 32 columns a block, 8 threads a column.
__global__ void __launch_bounds__(256)
    sum_partials(const float* partial, void* dw, DType dtype, std::int64_t columns) {
  __shared__ float sums[8][32];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
    for (std::int64_t i = threadIdx.y; i < kRmsNormBlocks; i += 8) {
      sum += partial[i * columns + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int i = 1; i < 8; ++i) sum += sums[i][threadIdx.x];
  if (dtype == DType::kFP32) {
    static_cast<float*>(dw)[column] = sum;
  } else {
    const std::uint32_t word = dtype == DType::kBF16 ? to_bf16x2(sum, 0.0f) : to_fp16x2(sum, 0.0f);
    static_cast<std::uint16_t*>(dw)[column] = static_cast<std::uint16_t>(word);
  }
}

// Calls f with a thread's items of 8 columns and the threads that make a row of them.
template <class F>
void with_items(std::int64_t columns, const F& f) {
  const std::int64_t vectors = columns / 8;
  const auto threads = [&](std::int64_t items) {
    const std::int64_t needed = (vectors + items - 1) / items;
    return static_cast<unsigned>((needed + kWarpSize - 1) / kWarpSize * kWarpSize);
  };
  if (vectors <= kThreadsOfOne) return f.template operator()<1>(threads(1));
  if (vectors <= 2 * kMaxThreads) return f.template operator()<2>(threads(2));
  f.template operator()<4>(threads(4));
}

template <class F>
void with_dtype(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kBF16:
      return f.template operator()<DType::kBF16>();
    case DType::kFP16:
      return f.template operator()<DType::kFP16>();
    case DType::kFP32:
      return f.template operator()<DType::kFP32>();
  }
}

}  // namespace

bool fits_rms_norm(std::int64_t columns) {
  return columns > 0 && columns % 8 == 0 && columns <= kMaxColumns;
}

void rms_norm(const RmsNormArgs& args, Stream stream) {
  if (args.rows == 0) return;
  with_dtype(args.dtype, [&]<DType T>() {
    with_items(args.columns, [&]<int Items>(unsigned threads) {
      rms_norm_kernel<T, Items>
          <<<static_cast<unsigned>(args.rows), threads, 0, static_cast<NativeStream>(stream)>>>(
              args);
    });
  });
}

void rms_norm_backward(const RmsNormBackwardArgs& args, Stream stream) {
  const auto native = static_cast<NativeStream>(stream);
  with_dtype(args.dtype, [&]<DType T>() {
    with_items(args.columns, [&]<int Items>(unsigned threads) {
      rms_norm_backward_kernel<T, Items>
          <<<static_cast<unsigned>(kRmsNormBlocks), threads, 0, native>>>(args);
    });
  });
  sum_partials<<<static_cast<unsigned>((args.columns + 31) / 32), dim3(32, 8), 0, native>>>(
      args.partial, args.dw, args.w_dtype, args.columns);
}

}  // namespace octavo::gpu
