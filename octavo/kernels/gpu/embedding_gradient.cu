#include "octavo/kernels/gpu/embedding_gradient.h"

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/packed.h"

namespace octavo::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 8;  // a thread's

// Block (i, j): the row of sorted[i], if i is the first of its token, columns from j * 2048.
template <DType T>
__global__ void OCTAVO_LAUNCH_BOUNDS(kThreads, 1)
    embedding_gradient_kernel(const EmbeddingGradientArgs a) {
  const std::int64_t first = blockIdx.x;
  const std::int64_t token = a.sorted[first];
  if (first > 0 && a.sorted[first - 1] == token) return;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kColumns;
  if (column >= a.features) return;
  constexpr int kBytes = T == DType::kFP32 ? 4 : 2;
  const int count =
      a.features - column < kColumns ? static_cast<int>(a.features - column) : kColumns;
  // Rows of a multiple of eight elements begin at 16 bytes where the first does.
  const bool whole = a.features % kColumns == 0 && (reinterpret_cast<std::uintptr_t>(a.dy) |
                                                    reinterpret_cast<std::uintptr_t>(a.gradient)) %
                                                           16 ==
                                                       0;
  char* const to = static_cast<char*>(a.gradient) + (token * a.features + column) * kBytes;
  const auto read = [&](const char* from) {
    Vec8<T> v;
    if (whole) {
      v.load(from);
    } else {
      v.gather(from, kBytes, count);
    }
    return v;
  };
  float sum[kColumns];
  const Vec8<T> old = read(to);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sum[i] = old[i];
  for (std::int64_t j = first; j < a.tokens && a.sorted[j] == token; ++j) {
    const Vec8<T> dy =
        read(static_cast<const char*>(a.dy) + (a.order[j] * a.features + column) * kBytes);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sum[i] += dy[i];
  }
  if (whole) {
    store8<T>(to, sum);
    return;
  }
  float rounded[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) rounded[i] = sum[i];
  alignas(16) char packed[kColumns * kBytes];
  store8<T>(packed, rounded);
  for (int i = 0; i < count * kBytes; ++i) to[i] = packed[i];
}

}  // namespace

void add_embedding_gradient(const EmbeddingGradientArgs& args, Stream stream) {
  if (args.tokens == 0 || args.features == 0) return;
  const dim3 grid(static_cast<unsigned>(args.tokens),
                  static_cast<unsigned>(ceil_div(args.features, kThreads * kColumns)));
  const auto native = static_cast<NativeStream>(stream);
  if (args.dtype == DType::kFP32) {
    embedding_gradient_kernel<DType::kFP32><<<grid, kThreads, 0, native>>>(args);
  } else if (args.dtype == DType::kBF16) {
    embedding_gradient_kernel<DType::kBF16><<<grid, kThreads, 0, native>>>(args);
  } else {
    embedding_gradient_kernel<DType::kFP16><<<grid, kThreads, 0, native>>>(args);
  }
}

}  // namespace octavo::gpu
