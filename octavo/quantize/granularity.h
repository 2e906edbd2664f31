#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace octavo {

/// The shape of the block that shares one scale, seen from the matrix that carries it: the
/// contraction runs along its columns in every layout, so the transposed layout of an operand
/// quantised 1x128 holds the operand's 128x1 blocks. 0 means "the whole extent".
struct Granularity {
  std::int64_t block_rows = 0;
  std::int64_t block_columns = 0;
  /// True for MX: the scale is an e8m0 code, not an fp32 number.
  bool mx = false;

  friend constexpr bool operator==(const Granularity&, const Granularity&) = default;

  static constexpr Granularity tensorwise() { return {0, 0}; }
  static constexpr Granularity rowwise() { return {1, 0}; }  ///< 1 x K
  static constexpr Granularity colwise() { return {0, 1}; }  ///< M x 1
  static constexpr Granularity block_1x128() { return {1, 128}; }
  static constexpr Granularity block_128x1() { return {128, 1}; }
  static constexpr Granularity block_128x128() { return {128, 128}; }
  static constexpr Granularity mx_1x32() { return {1, 32, true}; }

  /// The same blocks seen from the transposed matrix.
  constexpr Granularity swapped() const { return {block_columns, block_rows, mx}; }

  /// Number of blocks along `rows` (0 rows: 0 blocks, except a whole extent, which is always 1).
  constexpr std::int64_t scale_rows(std::int64_t rows) const { return count(rows, block_rows); }
  constexpr std::int64_t scale_columns(std::int64_t columns) const {
    return count(columns, block_columns);
  }

 private:
  static constexpr std::int64_t count(std::int64_t extent, std::int64_t block) {
    return block == 0 ? 1 : (extent + block - 1) / block;
  }
};

/// "tensorwise", "rowwise", "colwise", "1x128", "128x1", "128x128" or "mx1x32".
std::string to_string(const Granularity& granularity);

/// How the scales lie in memory.
enum class ScaleLayout : std::uint8_t {
  kPlain,        ///< (scale_rows, scale_columns), row-major
  kColumnMajor,  ///< the same sizes, strides (1, scale_rows): one column per 128-wide K block
  kPadded4,      ///< the same sizes, K blocks contiguous, row stride a multiple of 4
  kTiled128x4,   ///< e8m0 in 128x4 tiles (MX products on Blackwell)
};

/// The row stride of kPadded4 for `columns` scales (also c10::SymInt).
template <class Int>
constexpr Int padded4(const Int& columns) {
  return (columns + 3) / 4 * 4;
}

/// The layout products expect for `granularity`: kColumnMajor for 1x128 (and 128x1's transposed
/// twin), kPadded4 for 128x128, kPlain otherwise.
ScaleLayout default_scale_layout(const Granularity& granularity);

/// The strides of r x c scales in that layout.
std::array<std::int64_t, 2> default_scale_strides(const Granularity& granularity, std::int64_t r,
                                                  std::int64_t c);

}  // namespace octavo
