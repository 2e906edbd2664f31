#pragma once

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/packed.h"

/// Largest magnitudes of matrices as a kernel walks over them in strips: 32 lanes share 32 x 8 =
/// 256 columns and walk down rows of their own, so that column maxima stay in registers to the end.
/// A block has four such strips, one below the other.
namespace octavo::gpu {

inline constexpr int kStrips = 4;
inline constexpr int kStripColumns = 256;

/// The strips of `count` matrices (rows, columns): rows of a strip, and blocks along M of one
/// matrix and along K.
struct StripGrid {
  int strip_rows;
  std::int64_t down;
  unsigned across;
};

inline StripGrid strip_grid(std::int64_t rows, std::int64_t columns, std::int64_t count = 1) {
  // Strips of 32 to 256 rows: long ones save atomics, short ones fill the device.
  const std::int64_t wanted_blocks = 16 * std::int64_t{multiprocessors()};
  const std::int64_t across = ceil_div(columns, kStripColumns);
  const auto down = [&](std::int64_t strip_rows) { return ceil_div(rows, strip_rows * kStrips); };
  std::int64_t strip_rows = 256;
  while (strip_rows > 32 && across * count * down(strip_rows) < wanted_blocks) strip_rows /= 2;
  return {static_cast<int>(strip_rows), down(strip_rows), static_cast<unsigned>(across)};
}

/// Adds a few rows at a time to the row maxima in memory: two rows of bf16 or fp16, packed into one
/// word, cost five shuffles.
///
/// Matrices x Rows = 4: the lane's eight columns of rows m .. m + Rows of each, zeros where there
/// is none; those before `end` are stored, at row[i] + m of matrix i, null where not wanted.
template <DType T, int Matrices, int Rows>
OCTAVO_DEVICE void add_row_maxima(const Vec8<T> (&v)[Matrices][Rows],
                                  std::uint32_t* const (&row)[Matrices], std::int64_t m,
                                  std::int64_t end, int lane) {
  static_assert(Matrices * Rows == 4);
  using P = Packed<T>;
  constexpr int kPerWord = P::kHalfWords ? 2 : 1;
  constexpr int kWords = 4 / kPerWord;
  std::uint32_t words[kWords];
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    std::uint32_t all[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) {
      const int element = word * kPerWord + j;
#pragma unroll
      for (int i = 0; i < P::kWords; ++i) {
        all[j] = P::merge(all[j], P::magnitude(v[element / Rows][element % Rows].word[i]));
      }
    }
    words[word] = merge_pair<T>(all);
  }
  spread_merge<T, kWords, 0, 5>(words, lane);
  // Four lanes hold all of it: one store of each.
  if (lane >= 4) return;
  const int half = P::kHalfWords ? lane >> 1 : 0;
  const int element = first_word_after_spread<kWords, 0, 5>(lane) * kPerWord + half;
  const std::int64_t r = m + element % Rows;
  std::uint32_t* const result = element / Rows == 0 ? row[0] : row[Matrices - 1];
  if (r >= end || !result) return;
  atomic_max_relaxed(result + r, P::amax_bits(!P::kHalfWords ? words[0]
                                              : half         ? words[0] >> 16
                                                             : words[0] & 0xFFFFu));
}

/// The lane's column maxima, one row further.
template <DType T>
OCTAVO_DEVICE void add_column_maxima(std::uint32_t (&columns_max)[Packed<T>::kWords],
                                     const Vec8<T>& v) {
  using P = Packed<T>;
#pragma unroll
  for (int i = 0; i < P::kWords; ++i) {
    columns_max[i] = P::merge(columns_max[i], P::magnitude(v.word[i]));
  }
}

/// The block's column maxima, and their maximum, added to those in memory: `column` of the columns
/// from first_column on, of which there are `columns`, and tensor[0]; null: not wanted. Every
/// thread of the block calls it.
template <DType T>
OCTAVO_DEVICE void store_strips(const std::uint32_t (&columns_max)[Packed<T>::kWords],
                                std::uint32_t* tensor, std::uint32_t* column,
                                std::int64_t first_column, std::int64_t columns) {
  using P = Packed<T>;
  const int lane = threadIdx.x % 32, strip = threadIdx.x / 32;
  if (tensor) {
    __shared__ std::uint32_t strip_max[kStrips];
    std::uint32_t all[1] = {0};
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) all[0] = P::merge(all[0], columns_max[i]);
    spread_merge<T, 1, 0, 5>(all, lane);
    if (lane == 0) strip_max[strip] = all[0];
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 1; i < kStrips; ++i) all[0] = P::merge(all[0], strip_max[i]);
      atomic_max_relaxed(tensor, P::amax_bits(all[0]));
    }
  }
  if (column) {
    constexpr int kPerWord = P::kHalfWords ? 2 : 1;
    constexpr int kSharedWords = kStripColumns / 8 * P::kWords;
    __shared__ Words4 shared[kStrips][kSharedWords / 4];
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      shared[strip][lane * P::kVectors + i] = {columns_max[4 * i], columns_max[4 * i + 1],
                                               columns_max[4 * i + 2], columns_max[4 * i + 3]};
    }
    __syncthreads();
    const auto* words = reinterpret_cast<const std::uint32_t*>(shared);
    for (int w = threadIdx.x; w < kSharedWords; w += 32 * kStrips) {
      std::uint32_t all = 0;
#pragma unroll
      for (int i = 0; i < kStrips; ++i) all = P::merge(all, words[i * kSharedWords + w]);
      const std::int64_t k = first_column + w * kPerWord;
      if constexpr (P::kHalfWords) {
        if (k < columns) atomic_max_relaxed(column + k, P::amax_bits(all & 0xFFFFu));
        if (k + 1 < columns) atomic_max_relaxed(column + k + 1, P::amax_bits(all >> 16));
      } else {
        if (k < columns) atomic_max_relaxed(column + k, all);
      }
    }
  }
}

}  // namespace octavo::gpu
