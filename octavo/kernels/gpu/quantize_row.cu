#include "octavo/kernels/gpu/quantize_row.h"

#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile.h"

namespace octavo::gpu {
namespace {

constexpr int kItem = 16;  // columns a thread handles at a time: one 16-byte store
constexpr int kMaxThreads = 1024;

struct Params {
  Source x;
  std::uint8_t* data;
  float* scale;
  Format format;
  ScaleRounding rounding;
  const std::int32_t* present;

  OCTAVO_DEVICE bool has(std::int64_t m) const { return !present || m < *present; }
};

// inv_scale of the block's row from each thread's largest magnitude, packed.
template <DType T>
OCTAVO_DEVICE float row_inv_scale(std::uint32_t mine, const Params& p, Format format) {
  __shared__ std::uint32_t partial[kMaxThreads / 32];
  std::uint32_t all[1] = {mine};
  spread_merge<T, 1, 0, 5>(all, threadIdx.x & 31);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x / 32] = all[0];
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; ++i) all[0] = Packed<T>::merge(all[0], partial[i]);
  const float amax = internal::float_of(Packed<T>::amax_bits(all[0]));
  const float inv_scale = inv_scale_on_device(amax, format, p.rounding);
  if (threadIdx.x == 0 && p.scale) p.scale[blockIdx.x] = scale_on_device(inv_scale);
  return inv_scale;
}

// The row in registers: Items x 16 columns a thread.
template <DType T, class Encoder, int Items>
__global__ void __launch_bounds__(kMaxThreads / (T == DType::kFP32 ? 2 : 1))
    quantize_row_kernel(const Params p) {
  if constexpr (!Encoder::exists()) return;
  using P = Packed<T>;
  constexpr int kBytes = kItem * (P::kHalfWords ? 2 : 4);
  const Encoder encoder(p.format);
  const std::int64_t m = blockIdx.x;
  const char* row = p.x.data + m * p.x.row_bytes;
  const bool present = p.has(m);
  Vec8<T> v[Items][2];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const std::int64_t item = threadIdx.x + i * static_cast<std::int64_t>(blockDim.x);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (present && item * kItem < p.x.columns) {
        v[i][h].load_streaming(row + item * kBytes + h * (kBytes / 2));
      } else {
        v[i][h].clear();
      }
    }
  }
  std::uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < Items; ++i) {
#pragma unroll
    for (int w = 0; w < 2 * P::kWords; ++w) {
      mine = P::merge(mine, P::magnitude(v[i][w / P::kWords].word[w % P::kWords]));
    }
  }
  const float f = row_inv_scale<T>(mine, p, encoder.format());
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const std::int64_t item = threadIdx.x + i * static_cast<std::int64_t>(blockDim.x);
    if (item * kItem >= p.x.columns) continue;
    const Vec8<T>&a = v[i][0], &b = v[i][1];
    store16_streaming(p.data + m * p.x.columns + item * kItem,
                      {encoder(a[0] * f, a[1] * f, a[2] * f, a[3] * f),
                       encoder(a[4] * f, a[5] * f, a[6] * f, a[7] * f),
                       encoder(b[0] * f, b[1] * f, b[2] * f, b[3] * f),
                       encoder(b[4] * f, b[5] * f, b[6] * f, b[7] * f)});
  }
}

// Any strides, any length: two reads, element by element.
template <DType T>
__global__ void __launch_bounds__(256) quantize_any_row_kernel(const Params p) {
  using P = Packed<T>;
  const DynamicEncoder encoder(p.format);
  const std::int64_t m = blockIdx.x;
  const char* row = p.x.data + m * p.x.row_bytes;
  const bool present = p.has(m);
  const auto element = [&](std::int64_t k) -> std::uint32_t {
    if (!present) return 0;
    const char* at = row + k * p.x.column_bytes;
    if constexpr (T == DType::kFP32) return *reinterpret_cast<const std::uint32_t*>(at);
    return *reinterpret_cast<const std::uint16_t*>(at);
  };
  std::uint32_t mine = 0;
  for (std::int64_t k = threadIdx.x; k < p.x.columns; k += blockDim.x) {
    mine = P::merge(mine, P::magnitude(element(k)));
  }
  const float f = row_inv_scale<T>(mine, p, encoder.format());
  for (std::int64_t k = threadIdx.x; k < p.x.columns; k += blockDim.x) {
    const float x = P::to_float(element(k));
    p.data[m * p.x.columns + k] = static_cast<std::uint8_t>(encoder(x * f, 0.0f, 0.0f, 0.0f));
  }
}

// By the length of the row: threads, and items each of them holds.
template <DType T, class Encoder>
void launch_row_kernel(const Params& p, unsigned rows, NativeStream stream) {
  constexpr std::int64_t kThreads = kMaxThreads / (T == DType::kFP32 ? 2 : 1);
  const std::int64_t items = p.x.columns / kItem;
  const auto threads_for = [&](int each) {
    return static_cast<unsigned>(ceil_div(ceil_div(items, each), kWarpSize) * kWarpSize);
  };
  if (items <= 64) {
    quantize_row_kernel<T, Encoder, 1><<<rows, threads_for(1), 0, stream>>>(p);
  } else if (items <= 2 * 512) {
    quantize_row_kernel<T, Encoder, 2><<<rows, threads_for(2), 0, stream>>>(p);
  } else if (items <= 4 * kThreads) {
    quantize_row_kernel<T, Encoder, 4><<<rows, threads_for(4), 0, stream>>>(p);
  } else {
    quantize_any_row_kernel<T><<<rows, 256, 0, stream>>>(p);
  }
}

}  // namespace

void quantize_row(const QuantizeRowArgs& args, Stream stream) {
  const Matrix& x = args.x;
  if (x.rows == 0) return;
  const Params p{source_of(x), args.data, args.scale, args.format, args.rounding, args.present};
  const bool vectors =
      is_vector_readable(x) && x.columns % kItem == 0 && x.columns > 0 && is_aligned16(args.data);
  const auto rows = static_cast<unsigned>(x.rows);
  const auto native = static_cast<NativeStream>(stream);
  dispatch(x, args.format, vectors ? Access::kVector : Access::kElement,
           [&]<DType T, class Encoder, Access A>() {
             if constexpr (A == Access::kVector) {
               launch_row_kernel<T, Encoder>(p, rows, native);
             } else if constexpr (A == Access::kElement) {
               quantize_any_row_kernel<T><<<rows, 256, 0, native>>>(p);
             }
           });
}

}  // namespace octavo::gpu
