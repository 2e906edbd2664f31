#include "octavo/kernels/gpu/rms_norm.h"

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/rms_norm_math.h"

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

// Where thread t's item i of a row begins; past the row's end where it has none.
OCTAVO_DEVICE std::int64_t column_of(int item) {
  return (threadIdx.x + item * static_cast<std::int64_t>(blockDim.x)) * 8;
}

// A row's largest magnitude, of the block's threads' packed ones, in thread 0.
template <DType T>
OCTAVO_DEVICE std::uint32_t block_max(std::uint32_t mine) {
  __shared__ std::uint32_t of_warp[kMaxThreads / 32];
  std::uint32_t all[1] = {mine};
  spread_merge<T, 1, 0, 5>(all, threadIdx.x & 31);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = all[0];
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  for (unsigned i = 1; i < blockDim.x / 32; ++i) all[0] = Packed<T>::merge(all[0], of_warp[i]);
  return Packed<T>::amax_bits(all[0]);
}

// A block takes a row, or with Columns every gridDim-th, whose columns' maxima stay in registers.
template <DType T, int Items, bool Columns>
__global__ void __launch_bounds__(max_threads(Items)) rms_norm_kernel(const RmsNormArgs p) {
  using P = Packed<T>;
  constexpr int kBytes = P::kHalfWords ? 2 : 4;
  std::uint32_t columns_max[Items][P::kWords] = {};
  const bool wants_max = p.y_amax.tensor || p.y_amax.row;
  for (std::int64_t m = blockIdx.x; m < p.rows; m += gridDim.x) {
    const std::int64_t row = m * p.columns * kBytes;
    const auto at = [&](const void* base, std::int64_t column) {
      return static_cast<const char*>(base) + row + column * kBytes;
    };
    Vec8<T> h[Items];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      const std::int64_t column = column_of(i);
      if (column >= p.columns) continue;
      h[i].load_streaming(at(p.x, column));
      if (p.residual != nullptr) {
        Vec8<T> residual;
        residual.load_streaming(at(p.residual, column));
        float sum[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] = h[i][j] + residual[j];
        // What is normalised is what is stored.
        h[i] = Vec8<T>::rounded(sum);
        h[i].store(static_cast<char*>(p.h) + row + column * kBytes);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += h[i][j] * h[i][j];
    }
    const float mean = block_sum(squares) / static_cast<float>(p.columns);
    const float rstd = 1.0f / sqrtf(mean + p.eps);
    if (threadIdx.x == 0) p.rstd[m] = rstd;
    if (p.y == nullptr && !wants_max && !Columns) continue;
    std::uint32_t largest = 0;  // packed
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      const std::int64_t column = column_of(i);
      if (column >= p.columns) continue;
      float w[8], y[8];
      load_weights(w, p.w, p.w_dtype, column);
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = rms_norm_of(h[i][j], rstd, w[j]);
      const Vec8<T> rounded = Vec8<T>::rounded(y);
      if (p.y != nullptr) rounded.store(static_cast<char*>(p.y) + row + column * kBytes);
#pragma unroll
      for (int j = 0; j < P::kWords; ++j) {
        const std::uint32_t magnitude = P::magnitude(rounded.word[j]);
        largest = P::merge(largest, magnitude);
        if constexpr (Columns) columns_max[i][j] = P::merge(columns_max[i][j], magnitude);
      }
    }
    if (!wants_max) continue;
    const std::uint32_t amax = block_max<T>(largest);
    if (threadIdx.x != 0) continue;
    if (p.y_amax.row) {
      atomic_max_relaxed(reinterpret_cast<std::uint32_t*>(p.y_amax.row) + m, amax);
    }
    if (p.y_amax.tensor) {
      atomic_max_relaxed(reinterpret_cast<std::uint32_t*>(p.y_amax.tensor), amax);
    }
  }
  if constexpr (Columns) {
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      const std::int64_t column = column_of(i);
      if (column >= p.columns) continue;
      Vec8<T> out;
#pragma unroll
      for (int j = 0; j < P::kWords; ++j) out.word[j] = columns_max[i][j];
      out.store(static_cast<char*>(p.partial) + (blockIdx.x * p.columns + column) * kBytes);
    }
  }
}

// Column amaxes from the blocks' packed partial ones: 32 words a block, 32 threads a word.
template <DType T>
__global__ void __launch_bounds__(1024)
    max_partials(const std::uint32_t* partial, float* column, std::int64_t words, unsigned blocks) {
  using P = Packed<T>;
  __shared__ std::uint32_t maxima[32][32];
  const std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  std::uint32_t all = 0;
  if (word < words) {
#pragma unroll 8
    for (unsigned i = threadIdx.y; i < blocks; i += 32) {
      all = P::merge(all, partial[i * words + word]);
    }
  }
  maxima[threadIdx.y][threadIdx.x] = all;
  __syncthreads();
  if (threadIdx.y != 0 || word >= words) return;
#pragma unroll
  for (int i = 1; i < 32; ++i) all = P::merge(all, maxima[i][threadIdx.x]);
  auto* const result = reinterpret_cast<std::uint32_t*>(column);
  if constexpr (P::kHalfWords) {
    atomic_max_relaxed(result + 2 * word, P::amax_bits(all & 0xFFFFu));
    atomic_max_relaxed(result + 2 * word + 1, P::amax_bits(all >> 16));
  } else {
    atomic_max_relaxed(result + word, all);
  }
}

// What backward reads of a row, by a thread.
template <DType T, int Items>
struct BackwardRow {
  Vec8<T> dy[Items], h[Items], dh[Items];

  OCTAVO_DEVICE void load(const RmsNormBackwardArgs& p, std::int64_t m) {
    constexpr int kBytes = Packed<T>::kHalfWords ? 2 : 4;
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      const std::int64_t column = column_of(i), at = (m * p.columns + column) * kBytes;
      if (column >= p.columns) continue;
      dy[i].load_streaming(static_cast<const char*>(p.dy) + at);
      h[i].load_streaming(static_cast<const char*>(p.h) + at);
      if (p.dh != nullptr) dh[i].load_streaming(static_cast<const char*>(p.dh) + at);
    }
  }
};

// The next row is on its way while this one is summed, where registers hold both: two blocks a
// multiprocessor are all there is to hide the memory's latency.
template <DType T, int Items>
__global__ void __launch_bounds__(max_threads(Items))
    rms_norm_backward_kernel(const RmsNormBackwardArgs p) {
  constexpr int kBytes = Packed<T>::kHalfWords ? 2 : 4;
  constexpr bool kAhead = Packed<T>::kHalfWords && Items <= 2;
  float w[Items][8], dw[Items][8];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const std::int64_t column = column_of(i);
#pragma unroll
    for (int j = 0; j < 8; ++j) dw[i][j] = 0.0f;
    if (column < p.columns) load_weights(w[i], p.w, p.w_dtype, column);
  }
  BackwardRow<T, Items> row, next;
  if (kAhead && blockIdx.x < p.rows) next.load(p, blockIdx.x);
  for (std::int64_t m = blockIdx.x; m < p.rows; m += kRmsNormBlocks) {
    if constexpr (kAhead) {
      row = next;
      if (m + kRmsNormBlocks < p.rows) next.load(p, m + kRmsNormBlocks);
    } else {
      row.load(p, m);
    }
    const float rstd = p.rstd[m];
    float products = 0.0f;
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      if (column_of(i) >= p.columns) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        products += row.dy[i][j] * w[i][j] * row.h[i][j];
        dw[i][j] += row.dy[i][j] * (row.h[i][j] * rstd);
      }
    }
    const float c = block_sum(products) * (rstd * rstd * rstd) / static_cast<float>(p.columns);
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      const std::int64_t column = column_of(i);
      if (column >= p.columns) continue;
      float dx[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        dx[j] = row.dy[i][j] * w[i][j] * rstd - row.h[i][j] * c;
        if (p.dh != nullptr) dx[j] += row.dh[i][j];
      }
      store8<T>(static_cast<char*>(p.dx) + (m * p.columns + column) * kBytes, dx);
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
    // Loads ahead of the sums: one after the other they would take ten microseconds.
#pragma unroll 16
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

// Blocks that keep column maxima: all at work at once.
std::int64_t column_blocks(std::int64_t rows) {
  const std::int64_t most = 4 * std::int64_t{multiprocessors()};
  return rows < most ? rows : most;
}

}  // namespace

bool fits_rms_norm(std::int64_t columns) {
  return columns > 0 && columns % 8 == 0 && columns <= kMaxColumns;
}

std::int64_t rms_norm_partials(std::int64_t rows, std::int64_t columns) {
  return column_blocks(rows) * columns;
}

void rms_norm(const RmsNormArgs& args, Stream stream) {
  if (args.rows == 0) return;
  const auto native = static_cast<NativeStream>(stream);
  with_dtype(args.dtype, [&]<DType T>() {
    with_items(args.columns, [&]<int Items>(unsigned threads) {
      if (!args.y_amax.column) {
        rms_norm_kernel<T, Items, false>
            <<<static_cast<unsigned>(args.rows), threads, 0, native>>>(args);
        return;
      }
      const auto blocks = static_cast<unsigned>(column_blocks(args.rows));
      const std::int64_t words = args.columns * bytes_of(T) / 4;
      rms_norm_kernel<T, Items, true><<<blocks, threads, 0, native>>>(args);
      max_partials<T><<<static_cast<unsigned>((words + 31) / 32), dim3(32, 32), 0, native>>>(
          static_cast<const std::uint32_t*>(args.partial), args.y_amax.column, words, blocks);
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
