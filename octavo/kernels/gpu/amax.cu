#include "octavo/kernels/gpu/amax.h"

#include "octavo/kernels/gpu/strip_amax.h"

namespace octavo::gpu {
namespace {

// Blocks of four strips (strip_amax.h). A strip takes 32 rows at a time, so that rows cost one
// spreading reduction and one coalesced atomic per 32 x 256 elements.
constexpr int kBatch = 8;       // rows loaded before the first is used
constexpr int kTileRows = 128;  // of a GroupTile

struct Shape {
  const char* data;
  std::int64_t rows, columns, row_bytes, column_bytes;
  std::uint32_t *tensor, *row, *column;
  int strip_rows;
  // Groups: a table of tiles, or a batch of matrices of `rows` rows.
  const GroupTile* tiles;
  std::int64_t groups, group_bytes;
  unsigned blocks_of_group, blocks_across;  // along M and K
};

// The rows a block of threads shares.
struct Rows {
  std::int64_t group, first, end;  // inside the group, with offsets over all groups
  std::int64_t row_result;         // where the group's rows begin in Shape::row

  OCTAVO_DEVICE Rows(const Shape& s, unsigned down) {
    if (s.tiles) {
      const GroupTile tile = s.tiles[down];
      group = tile.group;
      first = tile.row;
      end = tile.group < s.groups ? first + tile.rows : first;
      row_result = 0;
      return;
    }
    const std::int64_t block_rows = kStrips * static_cast<std::int64_t>(s.strip_rows);
    group = down / s.blocks_of_group;
    first = down % s.blocks_of_group * block_rows;
    end = first + block_rows < s.rows ? first + block_rows : s.rows;
    row_result = group * s.rows;
  }
};

template <DType T, bool Contiguous>
__global__ void OCTAVO_LAUNCH_BOUNDS(32 * kStrips, (T == DType::kFP32 ? 3 : 4))
    amax_kernel(const Shape s) {
  using P = Packed<T>;
  const int lane = threadIdx.x % 32, strip = threadIdx.x / 32;
  const std::int64_t first_column =
      static_cast<std::int64_t>(blockIdx.x % s.blocks_across) * kStripColumns;
  const std::int64_t column = first_column + lane * 8;
  const Rows rows(s, blockIdx.x / s.blocks_across);
  if (rows.first >= rows.end) return;
  const std::int64_t first = rows.first + static_cast<std::int64_t>(strip) * s.strip_rows;
  const std::int64_t end = first + s.strip_rows < rows.end ? first + s.strip_rows : rows.end;
  const std::int64_t left = s.columns - column;
  const int count = left >= 8 ? 8 : left < 0 ? 0 : static_cast<int>(left);

  // Row maxima of 32 rows wait, packed, for one spreading reduction: 16 shuffles (fp32: 31).
  constexpr int kPerWord = P::kHalfWords ? 2 : 1;
  constexpr int kRowWords = 32 / kPerWord;
  std::uint32_t columns_max[P::kWords] = {};
  const char* address =
      s.data + rows.group * s.group_bytes + first * s.row_bytes + column * s.column_bytes;
  for (std::int64_t m = first; m < end; m += 32) {
    std::uint32_t rows_max[kRowWords];
#pragma unroll
    for (int q = 0; q < 32 / kBatch; ++q) {
      Vec8<T> v[kBatch];
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        const bool present = m + q * kBatch + r < end;
        if constexpr (Contiguous) {
          if (present && count > 0) {
            v[r].load(address);
          } else {
            v[r].clear();
          }
        } else {
          v[r].gather(address, s.column_bytes, present ? count : 0);
        }
        address += s.row_bytes;
      }
#pragma unroll
      for (int r = 0; r < kBatch; r += kPerWord) {
        std::uint32_t all[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < kPerWord; ++j) {
#pragma unroll
          for (int i = 0; i < P::kWords; ++i) {
            const std::uint32_t a = P::magnitude(v[r + j].word[i]);
            columns_max[i] = P::merge(columns_max[i], a);
            all[j] = P::merge(all[j], a);
          }
        }
        rows_max[(q * kBatch + r) / kPerWord] = merge_pair<T>(all);
      }
    }
    if (s.row) {
      spread_merge<T, kRowWords, 0, 5>(rows_max, lane);
      // 16-bit types: lanes 16 apart hold the same two rows; each stores one.
      const int half = P::kHalfWords ? lane >> 4 : 0;
      const std::int64_t r = m + first_word_after_spread<kRowWords, 0, 5>(lane) * kPerWord + half;
      if (r < end) {
        atomic_max_relaxed(s.row + rows.row_result + r,
                           half
                               ? P::amax_bits(rows_max[0] >> 16)
                               : P::amax_bits(P::kHalfWords ? rows_max[0] & 0xFFFFu : rows_max[0]));
      }
    }
  }

  store_strips<T>(columns_max, s.tensor ? s.tensor + rows.group : nullptr,
                  s.column ? s.column + rows.group * s.columns : nullptr, first_column, s.columns);
}

template <DType T>
void launch(const AmaxArgs& args, NativeStream stream) {
  const Matrix& x = args.x;
  const int element = bytes_of(T);
  const Groups& groups = args.groups;
  Shape s{static_cast<const char*>(x.data),
          x.rows,
          x.columns,
          x.row_stride * element,
          x.column_stride * element,
          reinterpret_cast<std::uint32_t*>(args.tensor),
          reinterpret_cast<std::uint32_t*>(args.row),
          reinterpret_cast<std::uint32_t*>(args.column),
          kTileRows / kStrips,
          groups.tiles,
          groups.count,
          groups.stride * element,
          1,
          static_cast<unsigned>(ceil_div(x.columns, kStripColumns))};
  std::int64_t row_blocks = groups.tile_count;
  if (!groups.tiles) {
    const StripGrid grid = strip_grid(x.rows, x.columns, groups.count);
    s.strip_rows = grid.strip_rows;
    s.blocks_of_group = static_cast<unsigned>(grid.down);
    row_blocks = groups.count * grid.down;
  }
  const auto grid = static_cast<unsigned>(row_blocks * s.blocks_across);
  if (is_vector_readable(x) && s.group_bytes % 16 == 0) {
    amax_kernel<T, true><<<grid, 32 * kStrips, 0, stream>>>(s);
  } else {
    amax_kernel<T, false><<<grid, 32 * kStrips, 0, stream>>>(s);
  }
}

}  // namespace

void amax(const AmaxArgs& args, Stream stream) {
  if (args.x.rows == 0 || args.x.columns == 0 || args.groups.count == 0) return;
  if (!args.tensor && !args.row && !args.column) return;
  const auto native = static_cast<NativeStream>(stream);
  switch (args.x.dtype) {
    case DType::kBF16:
      return launch<DType::kBF16>(args, native);
    case DType::kFP16:
      return launch<DType::kFP16>(args, native);
    case DType::kFP32:
      return launch<DType::kFP32>(args, native);
  }
}

void zero_amax(float* buffer, std::int64_t count, Stream stream) {
  zero_async(buffer, static_cast<std::size_t>(count) * sizeof(float), stream);
}

}  // namespace octavo::gpu
