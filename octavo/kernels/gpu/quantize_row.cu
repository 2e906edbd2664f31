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
  Producer from;
  char* written;

  OCTAVO_DEVICE bool has(std::int64_t m) const { return !present || m < *present; }
};

// inv_scale of the block's row from each thread's largest magnitude, packed.
template <DType T>
OCTAVO_DEVICE float row_inv_scale(std::uint32_t mine, const Params& p, std::int64_t m,
                                  Format format) {
  __shared__ std::uint32_t partial[kMaxThreads / 32];
  std::uint32_t all[1] = {mine};
  spread_merge<T, 1, 0, 5>(all, threadIdx.x & 31);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x / 32] = all[0];
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; ++i) all[0] = Packed<T>::merge(all[0], partial[i]);
  const float amax = internal::float_of(Packed<T>::amax_bits(all[0]));
  const float inv_scale = inv_scale_on_device(amax, format, p.rounding);
  if (threadIdx.x == 0 && p.scale) p.scale[m] = scale_on_device(inv_scale);
  return inv_scale;
}

// The row in registers: Items x 16 columns a thread.
template <DType T, class Encoder, int Items, class From, int N>
__global__ void __launch_bounds__(kMaxThreads / (T == DType::kFP32 ? 2 : 1))
    quantize_row_kernel(const Together<Params, N> all) {
  if constexpr (!Encoder::exists()) return;
  using P = Packed<T>;
  constexpr int kBytes = kItem * (P::kHalfWords ? 2 : 4);
  const Params& p = all.mine();
  const Encoder encoder(p.format);
  const std::int64_t m = all.block();
  const char* row = p.x.data + m * p.x.row_bytes;
  const bool present = p.has(m);
  Vec8<T> v[Items][2];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const std::int64_t item = threadIdx.x + i * static_cast<std::int64_t>(blockDim.x);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (present && item * kItem < p.x.columns) {
        if constexpr (From::kProduces) {
          const std::int64_t column = item * kItem + h * (kItem / 2);
          Vec8<T> one[1];
          const typename From::template Rows<T> produced(p.from, m, column);
          produced.read(one, 0, 1);
          v[i][h] = one[0];
          if (p.written) one[0].store(p.written + (m * p.x.columns + column) * (kBytes / kItem));
        } else {
          v[i][h].load_streaming(row + item * kBytes + h * (kBytes / 2));
        }
      } else {
        v[i][h].clear();
        if (From::kProduces && p.written && item * kItem < p.x.columns) {
          v[i][h].store(p.written +
                        (m * p.x.columns + item * kItem + h * (kItem / 2)) * (kBytes / kItem));
        }
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
  const float f = row_inv_scale<T>(mine, p, m, encoder.format());
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
  const float f = row_inv_scale<T>(mine, p, m, encoder.format());
  for (std::int64_t k = threadIdx.x; k < p.x.columns; k += blockDim.x) {
    const float x = P::to_float(element(k));
    p.data[m * p.x.columns + k] = static_cast<std::uint8_t>(encoder(x * f, 0.0f, 0.0f, 0.0f));
  }
}

// By the length of the row: items of it a thread holds, and how many threads then; false where it
// is too long. With `First` above 1 short rows take that many too: fewer instances to compile.
template <DType T, int First, class Launch>
bool with_items(std::int64_t columns, const Launch& launch) {
  constexpr std::int64_t kThreads = kMaxThreads / (T == DType::kFP32 ? 2 : 1);
  const std::int64_t items = columns / kItem;
  const auto threads_for = [&](int each) {
    return static_cast<unsigned>(ceil_div(ceil_div(items, each), kWarpSize) * kWarpSize);
  };
  if (First == 1 && items <= 64) {
    if constexpr (First == 1) launch.template operator()<1>(threads_for(1));
  } else if (items <= 2 * 512) {
    launch.template operator()<2>(threads_for(2));
  } else if (items <= 4 * kThreads) {
    launch.template operator()<4>(threads_for(4));
  } else {
    return false;
  }
  return true;
}

Params params_of(const QuantizeRowArgs& args) {
  return {source_of(args.x), args.data,    args.scale, args.format,
          args.rounding,     args.present, args.from,  static_cast<char*>(args.written)};
}

}  // namespace

bool fits_row_producer(const QuantizeRowArgs& args) {
  // A block takes a row, so that M need not be a multiple of 16, as it need not by offsets.
  return fits_producer(args.from, args.x, args.format, args.x.rows % 16 != 0) &&
         args.x.columns % kItem == 0 && args.x.columns > 0 &&
         args.x.columns / kItem <= 4 * kMaxThreads && is_aligned16(args.data) &&
         is_aligned16(args.written);
}

void quantize_row(const QuantizeRowArgs& args, Stream stream) {
  const Matrix& x = args.x;
  if (x.rows == 0) return;
  const Params p = params_of(args);
  const bool vectors =
      is_vector_readable(x) && x.columns % kItem == 0 && x.columns > 0 && is_aligned16(args.data);
  const auto rows = static_cast<unsigned>(x.rows);
  const auto native = static_cast<NativeStream>(stream);
  if (args.from) {
    return dispatch_produced(args.from, args.format, false,
                             [&]<DType T, class Encoder, Access A, class From>() {
                               with_items<T, 2>(x.columns, [&]<int Items>(unsigned threads) {
                                 quantize_row_kernel<T, Encoder, Items, From, 1>
                                     <<<rows, threads, 0, native>>>(Together<Params, 1>{{p}});
                               });
                             });
  }
  dispatch(x, args.format, vectors ? Access::kVector : Access::kElement,
           [&]<DType T, class Encoder, Access A>() {
             if constexpr (A == Access::kVector) {
               const bool fits = with_items<T, 1>(x.columns, [&]<int Items>(unsigned threads) {
                 quantize_row_kernel<T, Encoder, Items, FromMemory, 1>
                     <<<rows, threads, 0, native>>>(Together<Params, 1>{{p}});
               });
               if (!fits) quantize_any_row_kernel<T><<<rows, 256, 0, native>>>(p);
             } else if constexpr (A == Access::kElement) {
               quantize_any_row_kernel<T><<<rows, 256, 0, native>>>(p);
             }
           });
}

void quantize_row_pair(const QuantizeRowArgs& first, const QuantizeRowArgs& second, Stream stream) {
  if (first.x.rows == 0) return;
  const Params p[2] = {params_of(first), params_of(second)};
  dispatch_pair(first.format, [&]<DType T, class Encoder, Access A, class From>() {
    with_items<T, 2>(first.x.columns, [&]<int Items>(unsigned threads) {
      quantize_row_kernel<T, Encoder, Items, From, 2>
          <<<static_cast<unsigned>(2 * first.x.rows), threads, 0,
             static_cast<NativeStream>(stream)>>>(Together<Params, 2>{{p[0], p[1]}});
    });
  });
}

}  // namespace octavo::gpu
