#pragma once

#include "octavo/kernels/gpu/tile.h"

/// Largest magnitudes of a tile's rows and columns: packed in a thread, then combined over the
/// lanes that share a line.
namespace octavo::gpu {

/// The lines of a tile that carry a scale.
enum class Line : std::uint8_t { kRow, kColumn };

/// Per line of a thread's 16 x 8 the largest magnitude. kRow: of eight columns, rows packed in
/// pairs for 16-bit types (word i holds rows 2i and 2i + 1; fp32: row i). kColumn: of sixteen
/// rows, packed as the input is.
template <DType T, Line L>
struct LineAmax;

template <DType T>
struct LineAmax<T, Line::kRow> {
  static constexpr int kPerWord = Packed<T>::kHalfWords ? 2 : 1;
  static constexpr int kWords = kThreadRows / kPerWord;
  static constexpr int kFirstLaneBit = 0, kLaneBits = 3;
  std::uint32_t word[kWords];

  OCTAVO_DEVICE explicit LineAmax(const ThreadTile<T>& v) {
    using P = Packed<T>;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      std::uint32_t all[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < kPerWord; ++j) {
#pragma unroll
        for (int w = 0; w < P::kWords; ++w) {
          all[j] = P::merge(all[j], P::magnitude(v.row[i * kPerWord + j].word[w]));
        }
      }
      word[i] = merge_pair<T>(all);
    }
  }
};

template <DType T>
struct LineAmax<T, Line::kColumn> {
  static constexpr int kPerWord = Packed<T>::kHalfWords ? 2 : 1;
  static constexpr int kWords = Packed<T>::kWords;
  static constexpr int kFirstLaneBit = 3, kLaneBits = 2;
  std::uint32_t word[kWords];

  OCTAVO_DEVICE explicit LineAmax(const ThreadTile<T>& v) {
    using P = Packed<T>;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      word[w] = 0;
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        word[w] = P::merge(word[w], P::magnitude(v.row[r].word[w]));
      }
    }
  }
};

/// Element `i` of packed words, as fp32 bits.
template <DType T, int N>
OCTAVO_DEVICE std::uint32_t unpacked_bits(const std::uint32_t (&words)[N], int i) {
  using P = Packed<T>;
  if constexpr (!P::kHalfWords) return words[i];
  const std::uint32_t word = words[i / 2];
  return internal::bits_of(P::to_float(i % 2 == 0 ? word & 0xFFFFu : word >> 16));
}

/// Amaxes of a tile's lines as fp32 bits. A warp reduces half a line, so there are two of each.
using LinePartials = std::uint32_t[2][kTile];

/// Writes the warp's half of the lines; their amax can be read after a __syncthreads.
template <Line L, DType T>
OCTAVO_DEVICE void reduce_lines(const ThreadTile<T>& v, const TileThread& at, LinePartials& out) {
  using Amax = LineAmax<T, L>;
  Amax amax(v);
  spread_merge<T, Amax::kWords, Amax::kFirstLaneBit, Amax::kLaneBits>(amax.word, at.lane);
  const int first =
      first_word_after_spread<Amax::kWords, Amax::kFirstLaneBit, Amax::kLaneBits>(at.lane) *
      Amax::kPerWord;
  const int half = L == Line::kRow ? threadIdx.x >> 6 : threadIdx.x >> 5 & 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[half][(L == Line::kRow ? at.row : at.column) + first + i] = unpacked_bits<T>(amax.word, i);
  }
}

OCTAVO_DEVICE float line_amax(const LinePartials& partials, int line) {
  return internal::float_of(max_u32(partials[0][line], partials[1][line]));
}

/// A warp's share of the whole tile's amax, packed, in every lane.
template <DType T>
OCTAVO_DEVICE std::uint32_t reduce_warp(const ThreadTile<T>& v, const TileThread& at) {
  const LineAmax<T, Line::kColumn> column(v);
  std::uint32_t all[1] = {0};
#pragma unroll
  for (int w = 0; w < Packed<T>::kWords; ++w) all[0] = Packed<T>::merge(all[0], column.word[w]);
  spread_merge<T, 1, 0, 5>(all, at.lane);
  return all[0];
}

/// The maximum of what reduce_warp() gave each warp.
template <DType T>
OCTAVO_DEVICE float warps_amax(const std::uint32_t (&of_warp)[kTileThreads / 32]) {
  std::uint32_t all = of_warp[0];
#pragma unroll
  for (int i = 1; i < kTileThreads / 32; ++i) all = Packed<T>::merge(all, of_warp[i]);
  return internal::float_of(Packed<T>::amax_bits(all));
}

}  // namespace octavo::gpu
