#include "octavo/kernels/gpu/swiglu.h"

#include <initializer_list>

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/store.h"
#include "octavo/kernels/gpu/swiglu_math.h"

namespace octavo::gpu {
namespace {

constexpr int kSwigluThreads = 256;

struct Forward {
  template <DType T>
  OCTAVO_DEVICE static void element(const SwigluArgs& p, std::int64_t r, std::int64_t c) {
    const float gate = load_value<T>(p.gate.data, r * p.gate.row_stride + c);
    const float up = load_value<T>(p.up.data, r * p.up.row_stride + c);
    store_value<T>(p.h.data, r * p.h.row_stride + c, swiglu_of<T>(gate, up));
  }

  template <DType T>
  OCTAVO_DEVICE static void vector(const SwigluArgs& p, std::int64_t r, std::int64_t c) {
    constexpr int kSize = T == DType::kFP32 ? 4 : 2;
    Vec8<T> gate, up;
    gate.load_streaming(static_cast<const char*>(p.gate.data) +
                        (r * p.gate.row_stride + c) * kSize);
    up.load_streaming(static_cast<const char*>(p.up.data) + (r * p.up.row_stride + c) * kSize);
    float h[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] = swiglu_of<T>(gate[i], up[i]);
    store8<T>(static_cast<char*>(p.h.data) + (r * p.h.row_stride + c) * kSize, h);
  }
};

struct Backward {
  template <DType T>
  OCTAVO_DEVICE static void element(const SwigluArgs& p, std::int64_t r, std::int64_t c) {
    const float dh = load_value<T>(p.dh.data, r * p.dh.row_stride + c);
    const float gate = load_value<T>(p.gate.data, r * p.gate.row_stride + c);
    const float up = load_value<T>(p.up.data, r * p.up.row_stride + c);
    store_value<T>(p.dgate.data, r * p.dgate.row_stride + c, swiglu_dgate<T>(dh, gate, up));
    store_value<T>(p.dup.data, r * p.dup.row_stride + c, swiglu_dup<T>(dh, gate));
  }

  template <DType T>
  OCTAVO_DEVICE static void vector(const SwigluArgs& p, std::int64_t r, std::int64_t c) {
    constexpr int kSize = T == DType::kFP32 ? 4 : 2;
    Vec8<T> gate, up, dh;
    gate.load_streaming(static_cast<const char*>(p.gate.data) +
                        (r * p.gate.row_stride + c) * kSize);
    up.load_streaming(static_cast<const char*>(p.up.data) + (r * p.up.row_stride + c) * kSize);
    dh.load_streaming(static_cast<const char*>(p.dh.data) + (r * p.dh.row_stride + c) * kSize);
    float dgate[8], dup[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      dgate[i] = swiglu_dgate<T>(dh[i], gate[i], up[i]);
      dup[i] = swiglu_dup<T>(dh[i], gate[i]);
    }
    store8<T>(static_cast<char*>(p.dgate.data) + (r * p.dgate.row_stride + c) * kSize, dgate);
    store8<T>(static_cast<char*>(p.dup.data) + (r * p.dup.row_stride + c) * kSize, dup);
  }
};

// A thread does Width neighbours of one row at a time.
template <class Work, DType T, int Width>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_kernel(const SwigluArgs p) {
  const std::int64_t across = p.columns / Width, items = p.rows * across;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSwigluThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kSwigluThreads) + threadIdx.x;
       i < items; i += step) {
    const std::int64_t r = i / across, c = i % across * Width;
    if constexpr (Width == 8) {
      Work::template vector<T>(p, r, c);
    } else {
      Work::template element<T>(p, r, c);
    }
  }
}

bool takes_vectors(const SwigluArgs& p, std::initializer_list<RowsOf> matrices) {
  for (const RowsOf& m : matrices) {
    if (reinterpret_cast<std::uintptr_t>(m.data) % 16 != 0 || m.row_stride % 8 != 0) return false;
  }
  return p.columns % 8 == 0;
}

template <class Work, DType T>
void launch_of(const SwigluArgs& p, bool vectors, NativeStream stream) {
  const std::int64_t items = p.rows * p.columns / (vectors ? 8 : 1);
  const std::int64_t most = 16 * static_cast<std::int64_t>(multiprocessors());
  const std::int64_t wanted = ceil_div(items, kSwigluThreads);
  const auto blocks = static_cast<unsigned>(wanted < most ? wanted : most);
  if (vectors) {
    swiglu_kernel<Work, T, 8><<<blocks, kSwigluThreads, 0, stream>>>(p);
  } else {
    swiglu_kernel<Work, T, 1><<<blocks, kSwigluThreads, 0, stream>>>(p);
  }
}

template <class Work>
void launch_swiglu(const SwigluArgs& p, bool vectors, Stream stream) {
  if (p.rows == 0 || p.columns == 0) return;
  const auto native = static_cast<NativeStream>(stream);
  switch (p.dtype) {
    case DType::kBF16:
      return launch_of<Work, DType::kBF16>(p, vectors, native);
    case DType::kFP16:
      return launch_of<Work, DType::kFP16>(p, vectors, native);
    case DType::kFP32:
      return launch_of<Work, DType::kFP32>(p, vectors, native);
  }
}

}  // namespace

void swiglu(const SwigluArgs& args, Stream stream) {
  launch_swiglu<Forward>(args, takes_vectors(args, {args.gate, args.up, args.h}), stream);
}

void swiglu_backward(const SwigluArgs& args, Stream stream) {
  launch_swiglu<Backward>(
      args, takes_vectors(args, {args.gate, args.up, args.dh, args.dgate, args.dup}), stream);
}

}  // namespace octavo::gpu
