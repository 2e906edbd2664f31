#include "octavo/kernels/gpu/transpose.h"

#include "octavo/kernels/gpu/byte_transpose.h"
#include "octavo/kernels/gpu/launch.h"

namespace octavo::gpu {
namespace {

// A block of 128 threads takes 128 rows x 256 columns. Eight lanes lie along the rows, four along
// the columns: 128-byte lines are written whole, 64-byte halves of them read, by two warps side by
// side.
constexpr int kThreads = 128;
constexpr int kSide = 16;  // of a thread's square
constexpr int kTileRows = 8 * kSide, kTileColumns = 16 * kSide;

constexpr int kSmallTile = 32;  // of the path for any size

struct Params {
  const std::uint8_t* from;
  std::uint8_t* to;
  std::int64_t rows, columns, row_stride;
  unsigned across;  // tiles along C
};

__global__ void OCTAVO_LAUNCH_BOUNDS(kThreads, 4) transpose_squares_kernel(const Params p) {
  const int t = threadIdx.x;
  const std::int64_t r =
      static_cast<std::int64_t>(blockIdx.x / p.across) * kTileRows + (t >> 2 & 7) * kSide;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x % p.across) * kTileColumns +
                         ((t & 3) | (t >> 5) << 2) * kSide;
  if (r >= p.rows || c >= p.columns) return;
  Words4 row[kSide];
  const std::uint8_t* const from = p.from + r * p.row_stride + c;
#pragma unroll
  for (int i = 0; i < kSide; ++i) row[i] = load16_streaming(from + i * p.row_stride);
  std::uint8_t* const to = p.to + c * p.rows + r;
#pragma unroll
  for (int four = 0; four < 4; ++four) {
    std::uint32_t words[kSide], column[4][4];
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      words[i] = four == 0 ? row[i].x : four == 1 ? row[i].y : four == 2 ? row[i].z : row[i].w;
    }
    transpose_words(words, column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store16_streaming(to + (4 * four + i) * p.rows,
                        {column[i][0], column[i][1], column[i][2], column[i][3]});
    }
  }
}

// Any size and alignment, through shared memory.
__global__ void __launch_bounds__(256) transpose_any_kernel(const Params p) {
  __shared__ std::uint8_t tile[kSmallTile][kSmallTile + 4];
  const int x = threadIdx.x % kSmallTile, y = threadIdx.x / kSmallTile;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x / p.across) * kSmallTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x % p.across) * kSmallTile;
  for (int i = y; i < kSmallTile; i += 256 / kSmallTile) {
    const std::int64_t r = first_row + i, c = first_column + x;
    if (r < p.rows && c < p.columns) tile[i][x] = p.from[r * p.row_stride + c];
  }
  __syncthreads();
  for (int i = y; i < kSmallTile; i += 256 / kSmallTile) {
    const std::int64_t r = first_row + x, c = first_column + i;
    if (r < p.rows && c < p.columns) p.to[c * p.rows + r] = tile[x][i];
  }
}

bool is_multiple16(std::int64_t value) { return value % 16 == 0; }

}  // namespace

void transpose_bytes(const TransposeArgs& args, Stream stream) {
  if (args.rows == 0 || args.columns == 0) return;
  const auto native = static_cast<NativeStream>(stream);
  const bool squares = is_multiple16(args.rows) && is_multiple16(args.columns) &&
                       is_multiple16(args.row_stride) &&
                       is_multiple16(reinterpret_cast<std::intptr_t>(args.from)) &&
                       is_multiple16(reinterpret_cast<std::intptr_t>(args.to));
  const int tile_rows = squares ? kTileRows : kSmallTile;
  const int tile_columns = squares ? kTileColumns : kSmallTile;
  const Params p{args.from,       args.to,
                 args.rows,       args.columns,
                 args.row_stride, static_cast<unsigned>(ceil_div(args.columns, tile_columns))};
  const auto blocks = static_cast<unsigned>(ceil_div(args.rows, tile_rows) * p.across);
  if (squares) {
    transpose_squares_kernel<<<blocks, kThreads, 0, native>>>(p);
  } else {
    transpose_any_kernel<<<blocks, 256, 0, native>>>(p);
  }
}

}  // namespace octavo::gpu
