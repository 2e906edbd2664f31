#include "octavo/kernels/gpu/swiglu.h"

#include <initializer_list>

#include "octavo/kernels/gpu/store.h"
#include "octavo/kernels/gpu/strip_amax.h"
#include "octavo/kernels/gpu/swiglu_math.h"

namespace octavo::gpu {
namespace {

constexpr int kSwigluThreads = 256;

struct Forward {
  static constexpr int kInputs = 2, kOutputs = 1;
  OCTAVO_DEVICE static RowsOf input(const SwigluArgs& p, int i) { return i == 0 ? p.gate : p.up; }
  OCTAVO_HOST_DEVICE static RowsOf output(const SwigluArgs& p, int) { return p.h; }
  OCTAVO_HOST_DEVICE static WrittenAmax amax(const SwigluArgs& p, int) { return p.h_amax; }

  template <DType T>
  OCTAVO_DEVICE static void compute(const float (&in)[kInputs], float (&out)[kOutputs]) {
    out[0] = swiglu_of<T>(in[0], in[1]);
  }
};

struct Backward {
  static constexpr int kInputs = 3, kOutputs = 2;
  OCTAVO_DEVICE static RowsOf input(const SwigluArgs& p, int i) {
    return i == 0 ? p.gate : i == 1 ? p.up : p.dh;
  }
  OCTAVO_HOST_DEVICE static RowsOf output(const SwigluArgs& p, int i) {
    return i == 0 ? p.dgate : p.dup;
  }
  OCTAVO_HOST_DEVICE static WrittenAmax amax(const SwigluArgs& p, int i) {
    return i == 0 ? p.dgate_amax : p.dup_amax;
  }

  template <DType T>
  OCTAVO_DEVICE static void compute(const float (&in)[kInputs], float (&out)[kOutputs]) {
    out[0] = swiglu_dgate<T>(in[2], in[0], in[1]);
    out[1] = swiglu_dup<T>(in[2], in[0]);
  }
};

// Eight neighbours of one row.
template <class Work, DType T>
OCTAVO_DEVICE void compute8(const Vec8<T> (&in)[Work::kInputs], Vec8<T> (&out)[Work::kOutputs]) {
  float results[Work::kOutputs][8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float x[Work::kInputs], y[Work::kOutputs];
#pragma unroll
    for (int j = 0; j < Work::kInputs; ++j) x[j] = in[j][i];
    Work::template compute<T>(x, y);
#pragma unroll
    for (int j = 0; j < Work::kOutputs; ++j) results[j][i] = y[j];
  }
#pragma unroll
  for (int j = 0; j < Work::kOutputs; ++j) out[j] = Vec8<T>::rounded(results[j]);
}

template <DType T>
OCTAVO_DEVICE char* address_of(const RowsOf& rows, std::int64_t r, std::int64_t c) {
  constexpr int kSize = T == DType::kFP32 ? 4 : 2;
  return static_cast<char*>(rows.data) + (r * rows.row_stride + c) * kSize;
}

// A thread does Width neighbours of one row at a time.
template <class Work, DType T, int Width>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_kernel(const SwigluArgs p) {
  const std::int64_t across = p.columns / Width, items = p.rows * across;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSwigluThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kSwigluThreads) + threadIdx.x;
       i < items; i += step) {
    const std::int64_t r = i / across, c = i % across * Width;
    if constexpr (Width == 8) {
      Vec8<T> in[Work::kInputs], out[Work::kOutputs];
#pragma unroll
      for (int j = 0; j < Work::kInputs; ++j) {
        in[j].load_streaming(address_of<T>(Work::input(p, j), r, c));
      }
      compute8<Work, T>(in, out);
#pragma unroll
      for (int j = 0; j < Work::kOutputs; ++j)
        out[j].store(address_of<T>(Work::output(p, j), r, c));
    } else {
      float in[Work::kInputs], out[Work::kOutputs];
#pragma unroll
      for (int j = 0; j < Work::kInputs; ++j) {
        in[j] = load_value<T>(address_of<T>(Work::input(p, j), r, c), 0);
      }
      Work::template compute<T>(in, out);
#pragma unroll
      for (int j = 0; j < Work::kOutputs; ++j) {
        store_value<T>(address_of<T>(Work::output(p, j), r, c), 0, out[j]);
      }
    }
  }
}

// The same in strips of rows, which know the amaxes of what they write. Few rows at a time and so
// few registers: it takes many waves to hide loads behind this much arithmetic.
template <class Work, DType T>
__global__ void OCTAVO_LAUNCH_BOUNDS(32 * kStrips, (T == DType::kFP32 ? 4 : 8))
    swiglu_amax_kernel(const SwigluArgs p, const int strip_rows, const unsigned across) {
  constexpr int kRows = 4 / Work::kOutputs;
  const int lane = threadIdx.x % 32, strip = threadIdx.x / 32;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x % across) * kStripColumns;
  const std::int64_t c = first_column + lane * 8;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x / across) * kStrips + strip) * strip_rows;
  const std::int64_t end = first + strip_rows < p.rows ? first + strip_rows : p.rows;
  const bool inside = c < p.columns;
  std::uint32_t* row[Work::kOutputs];
  bool rows_wanted = false;
#pragma unroll
  for (int j = 0; j < Work::kOutputs; ++j) {
    row[j] = reinterpret_cast<std::uint32_t*>(Work::amax(p, j).row);
    rows_wanted = rows_wanted || row[j];
  }
  std::uint32_t columns_max[Work::kOutputs][Packed<T>::kWords] = {};
  for (std::int64_t m = first; m < end; m += kRows) {
    Vec8<T> in[kRows][Work::kInputs], out[Work::kOutputs][kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Work::kInputs; ++j) {
        if (inside && m + r < end) {
          in[r][j].load_streaming(address_of<T>(Work::input(p, j), m + r, c));
        } else {
          in[r][j].clear();
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Vec8<T> results[Work::kOutputs];
      compute8<Work, T>(in[r], results);
#pragma unroll
      for (int j = 0; j < Work::kOutputs; ++j) {
        out[j][r] = results[j];
        add_column_maxima<T>(columns_max[j], results[j]);
        if (inside && m + r < end) results[j].store(address_of<T>(Work::output(p, j), m + r, c));
      }
    }
    if (rows_wanted) add_row_maxima<T>(out, row, m, end, lane);
  }
#pragma unroll
  for (int j = 0; j < Work::kOutputs; ++j) {
    if (j > 0) __syncthreads();  // what they share is free again
    const WrittenAmax amax = Work::amax(p, j);
    store_strips<T>(columns_max[j], reinterpret_cast<std::uint32_t*>(amax.tensor),
                    reinterpret_cast<std::uint32_t*>(amax.column), first_column, p.columns);
  }
}

bool takes_vectors(const SwigluArgs& p, std::initializer_list<RowsOf> matrices) {
  for (const RowsOf& m : matrices) {
    if (reinterpret_cast<std::uintptr_t>(m.data) % 16 != 0 || m.row_stride % 8 != 0) return false;
  }
  return p.columns % 8 == 0;
}

template <class Work>
bool wants_amax(const SwigluArgs& p) {
  return Work::amax(p, 0) || Work::amax(p, Work::kOutputs - 1);
}

template <class Work, DType T>
void launch_of(const SwigluArgs& p, bool vectors, NativeStream stream) {
  if (vectors && wants_amax<Work>(p)) {
    const StripGrid grid = strip_grid(p.rows, p.columns);
    swiglu_amax_kernel<Work, T>
        <<<static_cast<unsigned>(grid.down * grid.across), 32 * kStrips, 0, stream>>>(
            p, grid.strip_rows, grid.across);
    return;
  }
  const std::int64_t items = p.rows * p.columns / (vectors ? 8 : 1);
  const std::int64_t most = 16 * static_cast<std::int64_t>(multiprocessors());
  const std::int64_t wanted = ceil_div(items, kSwigluThreads);
  const auto blocks = static_cast<unsigned>(wanted < most ? wanted : most);
  if (vectors) {
    swiglu_kernel<Work, T, 8><<<blocks, kSwigluThreads, 0, stream>>>(p);
    return;
  }
  swiglu_kernel<Work, T, 1><<<blocks, kSwigluThreads, 0, stream>>>(p);
  for (int j = 0; j < Work::kOutputs; ++j) {
    const RowsOf written = Work::output(p, j);
    const WrittenAmax amax_of = Work::amax(p, j);
    amax({.x = {written.data, p.dtype, p.rows, p.columns, written.row_stride, 1},
          .tensor = amax_of.tensor,
          .row = amax_of.row,
          .column = amax_of.column},
         stream);
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
