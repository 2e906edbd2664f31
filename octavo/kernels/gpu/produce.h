#pragma once

#include "octavo/kernels/gpu/packed.h"
#include "octavo/kernels/gpu/producer.h"
#include "octavo/kernels/gpu/rms_norm_math.h"
#include "octavo/kernels/gpu/swiglu_math.h"

/// Producers as kernels see them: eight neighbouring columns of one row after another. Each has
///
///   Rows<T>(producer, row, column)        the eight columns from `column` on, rows from `row` on
///   rows.read(v, first, present)          v[i] = row first + i, zeros from v[present] on;
///                                         present >= 1
///
/// Rows that are not there are read as the last one that is and then cleared: a branch would keep
/// loads of different rows from overlapping.
namespace octavo::gpu {

/// No producer: the kernel reads its matrix itself.
struct FromMemory {
  static constexpr bool kProduces = false;
};

/// Eight columns of one operand.
struct ProducerColumn {
  const char* address;
  std::int64_t row_bytes;

  OCTAVO_DEVICE ProducerColumn(const ConstRows& rows, std::int64_t row, std::int64_t column)
      : address(static_cast<const char*>(rows.data) + 2 * (row * rows.row_stride + column)),
        row_bytes(2 * rows.row_stride) {}
  template <DType T>
  OCTAVO_DEVICE Vec8<T> at(std::int64_t row) const {
    Vec8<T> v;
    v.load(address + row * row_bytes);
    return v;
  }
};

/// v[i] = row_of(first + i) for the present rows, a few rows' loads ahead of their use.
template <DType T, int N, class RowOf>
OCTAVO_DEVICE void read_rows(Vec8<T> (&v)[N], std::int64_t first, std::int64_t present,
                             const RowOf& row_of) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    v[i] = row_of(first + (i < present ? i : present - 1));
    if (i >= present) v[i].clear();
  }
}

struct FromSwiglu {
  static constexpr bool kProduces = true;

  template <DType T>
  struct Rows {
    ProducerColumn gate, up;

    OCTAVO_DEVICE Rows(const Producer& p, std::int64_t row, std::int64_t column)
        : gate(p.gate, row, column), up(p.up, row, column) {}
    template <int N>
    OCTAVO_DEVICE void read(Vec8<T> (&v)[N], std::int64_t first, std::int64_t present) const {
      read_rows(v, first, present, [&](std::int64_t r) {
        const Vec8<T> g = gate.at<T>(r), u = up.at<T>(r);
        float h[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) h[i] = swiglu_of<T>(g[i], u[i]);
        return Vec8<T>::rounded(h);
      });
    }
  };
};

struct FromSwigluGradients {
  static constexpr bool kProduces = true;

  template <DType T>
  struct Rows {
    bool is_up;  // dup or dgate
    ProducerColumn dh, gate, up;

    OCTAVO_DEVICE Rows(const Producer& p, std::int64_t row, std::int64_t column)
        : Rows(p, row, column + p.first_column, column + p.first_column >= p.features) {}
    template <int N>
    OCTAVO_DEVICE void read(Vec8<T> (&v)[N], std::int64_t first, std::int64_t present) const {
      if (is_up) {
        read_rows(v, first, present, [&](std::int64_t r) {
          const Vec8<T> d = dh.at<T>(r), g = gate.at<T>(r);
          float dup[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) dup[i] = swiglu_dup<T>(d[i], g[i]);
          return Vec8<T>::rounded(dup);
        });
      } else {
        read_rows(v, first, present, [&](std::int64_t r) {
          const Vec8<T> d = dh.at<T>(r), g = gate.at<T>(r), u = up.at<T>(r);
          float dgate[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) dgate[i] = swiglu_dgate<T>(d[i], g[i], u[i]);
          return Vec8<T>::rounded(dgate);
        });
      }
    }

   private:
    OCTAVO_DEVICE Rows(const Producer& p, std::int64_t row, std::int64_t column, bool is_up)
        : is_up(is_up),
          dh(p.dh, row, is_up ? column - p.features : column),
          gate(p.gate, row, is_up ? column - p.features : column),
          up(p.up, row, is_up ? column - p.features : column) {}
  };
};

struct FromRmsNorm {
  static constexpr bool kProduces = true;

  template <DType T>
  struct Rows {
    ProducerColumn h;
    const float* rstd;
    float w[8];

    OCTAVO_DEVICE Rows(const Producer& p, std::int64_t row, std::int64_t column)
        : h(p.h, row, column), rstd(p.rstd + row) {
      load_weights(w, p.w, p.w_dtype, column);
    }
    template <int N>
    OCTAVO_DEVICE void read(Vec8<T> (&v)[N], std::int64_t first, std::int64_t present) const {
      read_rows(v, first, present, [&](std::int64_t r) {
        const Vec8<T> x = h.at<T>(r);
        const float scale = rstd[r];
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = rms_norm_of(x[i], scale, w[i]);
        return Vec8<T>::rounded(y);
      });
    }
  };
};

/// What one launch does for N matrices of one size: neighbouring blocks do the same place of each,
/// so that what they read alike is read from memory once.
template <class Params, int N>
struct Together {
  Params of[N];

  OCTAVO_DEVICE const Params& mine() const { return of[N == 1 ? 0 : blockIdx.x % N]; }
  OCTAVO_DEVICE static unsigned block() { return blockIdx.x / N; }
};

}  // namespace octavo::gpu
