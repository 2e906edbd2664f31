#include "octavo/kernels/gpu/permute.h"

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/store.h"

namespace octavo::gpu {
namespace {

constexpr int kPermuteThreads = 128;

// Eight features at `at`, or one in its first place (Width 1).
template <DType T, int Width>
OCTAVO_DEVICE void load_features(const void* data, std::int64_t at, float (&v)[8]) {
  if constexpr (Width == 1) {
    v[0] = load_value<T>(data, at);
  } else {
    Vec8<T> x;
    x.load(static_cast<const char*>(data) + at * (T == DType::kFP32 ? 4 : 2));
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = x[i];
  }
}

template <DType T, int Width>
OCTAVO_DEVICE void store_features(void* data, std::int64_t at, const float (&v)[8]) {
  if constexpr (Width == 1) {
    store_value<T>(data, at, v[0]);
  } else {
    store8<T>(static_cast<char*>(data) + at * (T == DType::kFP32 ? 4 : 2), v);
  }
}

// A block per sorted row.
template <DType T, int Width>
__global__ void __launch_bounds__(kPermuteThreads) permute_kernel(const PermuteArgs p) {
  for (std::int64_t r = blockIdx.x; r < p.tokens * p.copies; r += gridDim.x) {
    const std::int64_t choice = p.choice[r], from = choice / p.copies * p.features;
    const float weight = p.weights ? p.weights[choice] : 1.0f;
    for (std::int64_t d = threadIdx.x * Width; d < p.features; d += kPermuteThreads * Width) {
      float v[8];
      load_features<T, Width>(p.tokens_in, from + d, v);
      if (p.weights) {
#pragma unroll
        for (int i = 0; i < Width; ++i) v[i] *= weight;
      }
      store_features<T, Width>(p.rows_out, r * p.features + d, v);
    }
  }
}

// A block per token: its copies are added in order, so every run gives the same bits.
template <DType T, int Width>
__global__ void __launch_bounds__(kPermuteThreads) unpermute_kernel(const PermuteArgs p) {
  for (std::int64_t m = blockIdx.x; m < p.tokens; m += gridDim.x) {
    const std::int64_t* row = p.row + m * p.copies;
    for (std::int64_t d = threadIdx.x * Width; d < p.features; d += kPermuteThreads * Width) {
      float sum[8] = {};
      for (std::int64_t j = 0; j < p.copies; ++j) {
        float v[8];
        load_features<T, Width>(p.rows_in, row[j] * p.features + d, v);
        const float weight = p.weights ? p.weights[m * p.copies + j] : 1.0f;
#pragma unroll
        for (int i = 0; i < Width; ++i) sum[i] += p.weights ? weight * v[i] : v[i];
      }
      store_features<T, Width>(p.tokens_out, m * p.features + d, sum);
    }
  }
}

// A block per copy.
template <DType T, int Width>
__global__ void __launch_bounds__(kPermuteThreads) weight_gradient_kernel(const PermuteArgs p) {
  __shared__ float partial[kPermuteThreads / 32];
  for (std::int64_t c = blockIdx.x; c < p.tokens * p.copies; c += gridDim.x) {
    const std::int64_t token = c / p.copies * p.features, row = p.row[c] * p.features;
    float sum = 0;
    for (std::int64_t d = threadIdx.x * Width; d < p.features; d += kPermuteThreads * Width) {
      float a[8], b[8];
      load_features<T, Width>(p.tokens_in, token + d, a);
      load_features<T, Width>(p.rows_in, row + d, b);
#pragma unroll
      for (int i = 0; i < Width; ++i) sum += a[i] * b[i];
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      sum += internal::float_of(shuffle_xor(internal::bits_of(sum), mask));
    }
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      float all = 0;
      for (const float part : partial) all += part;
      p.dweights[c] = all;
    }
    __syncthreads();
  }
}

enum class Move { kPermute, kUnpermute, kWeightGradient };

template <DType T, int Width>
void launch_move(const PermuteArgs& p, Move move, NativeStream stream) {
  const std::int64_t items = move == Move::kUnpermute ? p.tokens : p.tokens * p.copies;
  if (items == 0) return;
  const std::int64_t most = 1 << 20;
  const auto blocks = static_cast<unsigned>(items < most ? items : most);
  switch (move) {
    case Move::kPermute:
      permute_kernel<T, Width><<<blocks, kPermuteThreads, 0, stream>>>(p);
      return;
    case Move::kUnpermute:
      unpermute_kernel<T, Width><<<blocks, kPermuteThreads, 0, stream>>>(p);
      return;
    case Move::kWeightGradient:
      weight_gradient_kernel<T, Width><<<blocks, kPermuteThreads, 0, stream>>>(p);
      return;
  }
}

template <DType T>
void launch_typed(const PermuteArgs& p, Move move, NativeStream stream) {
  const auto aligned = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  const bool vectors = p.features % 8 == 0 && aligned(p.tokens_in) && aligned(p.rows_in) &&
                       aligned(p.tokens_out) && aligned(p.rows_out);
  return vectors ? launch_move<T, 8>(p, move, stream) : launch_move<T, 1>(p, move, stream);
}

void launch_any(const PermuteArgs& p, Move move, Stream stream) {
  const auto native = static_cast<NativeStream>(stream);
  switch (p.dtype) {
    case DType::kBF16:
      return launch_typed<DType::kBF16>(p, move, native);
    case DType::kFP16:
      return launch_typed<DType::kFP16>(p, move, native);
    case DType::kFP32:
      return launch_typed<DType::kFP32>(p, move, native);
  }
}

}  // namespace

void permute_rows(const PermuteArgs& args, Stream stream) {
  launch_any(args, Move::kPermute, stream);
}
void unpermute_rows(const PermuteArgs& args, Stream stream) {
  launch_any(args, Move::kUnpermute, stream);
}
void unpermute_weight_gradient(const PermuteArgs& args, Stream stream) {
  launch_any(args, Move::kWeightGradient, stream);
}

}  // namespace octavo::gpu
