#include "octavo/kernels/gpu/rope.h"

#include "octavo/kernels/gpu/packed.h"
#include "octavo/kernels/gpu/platform.h"

namespace octavo::gpu {
namespace {

constexpr unsigned kThreads = 256;

// Of both tensors.
OCTAVO_HOST_DEVICE inline std::int64_t rows_of(const RopeArgs& p, int tensor) {
  return p.batch * p.sequence * p.tensors[tensor].heads;
}

// A thread turns eight pairs: those of the first tensor, then those of the second.
template <DType T>
__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeArgs p) {
  constexpr int kBytes = Packed<T>::kHalfWords ? 2 : 4;
  const std::int64_t half = p.features / 2, vectors = half / 8;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t rows = rows_of(p, 0);
  std::int64_t row = index / vectors;  // of (B * T * H)
  const bool is_first = row < rows;
  if (!is_first) row -= rows;
  if (!is_first && row >= rows_of(p, 1)) return;
  const RopeTensor tensor = is_first ? p.tensors[0] : p.tensors[1];
  const std::int64_t feature = index % vectors * 8;
  const std::int64_t position = row / tensor.heads % p.sequence;
  const std::int64_t first = (row * p.features + feature) * kBytes;
  const std::int64_t second = first + half * kBytes;
  Vec8<T> a, b;
  a.load_streaming(static_cast<const char*>(tensor.x) + first);
  b.load_streaming(static_cast<const char*>(tensor.x) + second);
  const float* cosine = p.cosine + position * p.features + feature;
  const float* sine = p.sine + position * p.features + feature;
  const float sign = p.inverse ? -1.0f : 1.0f;
  float y_first[8], y_second[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    y_first[i] = a[i] * cosine[i] + b[i] * (sign * sine[i]);
    y_second[i] = b[i] * cosine[half + i] + a[i] * (sign * sine[half + i]);
  }
  store8<T>(static_cast<char*>(tensor.y) + first, y_first);
  store8<T>(static_cast<char*>(tensor.y) + second, y_second);
}

}  // namespace

void rope(const RopeArgs& args, Stream stream) {
  const std::int64_t threads = (rows_of(args, 0) + rows_of(args, 1)) * (args.features / 16);
  if (threads == 0) return;
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  const auto native = static_cast<NativeStream>(stream);
  switch (args.dtype) {
    case DType::kBF16:
      return rope_kernel<DType::kBF16><<<blocks, kThreads, 0, native>>>(args);
    case DType::kFP16:
      return rope_kernel<DType::kFP16><<<blocks, kThreads, 0, native>>>(args);
    case DType::kFP32:
      return rope_kernel<DType::kFP32><<<blocks, kThreads, 0, native>>>(args);
  }
}

}  // namespace octavo::gpu
