#include "octavo/kernels/gpu/grouped_gemm.h"

#include <cuda.h>

#include <cstdio>

#include "octavo/kernels/gpu/grouped_gemm_hopper.h"
#include "octavo/kernels/gpu/grouped_gemm_schedule.h"
#include "octavo/kernels/gpu/launch.h"

// One persistent kernel serves both products. Rows of all groups are one matrix, experts' weights
// are one matrix of E*N rows, and groups of the contraction are ranges of columns: so two tensor
// maps made on the host describe everything, and a group is only coordinates.
//
// A block computes 128 x 256 of out: one warpgroup loads boxes of 128 bytes of the contraction into
// a ring of stages, two warpgroups multiply 64 x 256 each, in step only as far as the ring makes
// them: while one writes its result, the other has the tensor cores. Two blocks make a cluster,
// each loads half of the operand they share into both (a share of b is worth most: see Walk).
//
// Rows past a group's end are multiplied and not written; a warpgroup, half of b or of a that has
// none but such is not loaded or multiplied.
namespace octavo::gpu {
namespace {

using namespace grouped;
using namespace hopper;

constexpr int kStages = 4;
constexpr int kDepth = 128;  // bytes of the contraction in a stage
constexpr int kStep = 32;    // and in one wgmma
constexpr int kHalfA = 64 * kDepth, kHalfB = 128 * kDepth;
constexpr int kStageBytes = 2 * kHalfA + 2 * kHalfB;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kChunk = 64;                      // columns of out a warp stages at a time
constexpr int kStagingBytes = 16 * kChunk * 2;  // a warp's
constexpr int kOutWarps = 4 * kConsumers;

struct Shared {
  alignas(1024) std::uint8_t stages[kStages][kStageBytes];
  std::uint8_t staging[kOutWarps][kStagingBytes];
  float column_scale[kConsumers][2][kTileColumns];  // of the tile at hand and the one before
  Group table[kMaxGroups + 1];
  std::uint64_t full[kStages], empty[kStages];
};
static_assert(sizeof(Shared::staging) >= sizeof(Shared::table), "the table's scratch memory");
static_assert(sizeof(Shared) <= 227 * 1024);

struct Params {
  CUtensorMap a, b;
  Extents extents;
  const std::int32_t* offs;
  const float *a_scale, *b_scale;
  std::uint16_t* out;
};

/// The ring of stages as one thread sees it.
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  OCTAVO_DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

template <Product P>
OCTAVO_DEVICE void load(const Params& p, Shared& shared, Walk<P>& walk, std::uint32_t rank) {
  constexpr std::uint16_t kBoth = 3;
  Ring ring;
  Tile tile;
  while (walk.next(tile)) {
    const int b_row = tile.column + (P == Product::kRows ? tile.group * p.extents.columns : 0);
    const int halves_a = tile.rows > 64 ? 2 : 1;
    const int halves_b = tiles_along(tile.columns, 128);
    const std::uint32_t bytes = halves_a * kHalfA + halves_b * kHalfB;
    if (threadIdx.x % 32 > 0) continue;  // walking takes all lanes, loading one
    for (int k = 0; k < tile.length; k += kDepth) {
      const std::uint32_t full = shared_address(&shared.full[ring.stage]);
      const std::uint32_t a = shared_address(shared.stages[ring.stage]), b = a + 2 * kHalfA;
      barrier_wait(shared_address(&shared.empty[ring.stage]), ring.parity ^ 1);
      barrier_expect(full, bytes);
      const int mine = static_cast<int>(rank);
      if (tile.share_b) {
        for (int h = 0; h < halves_a; ++h) {
          copy_box(&p.a, a + h * kHalfA, full, tile.k + k, tile.row + h * 64);
        }
        if (mine < halves_b) {
          copy_box_to_cluster(&p.b, b + mine * kHalfB, full, tile.k + k, b_row + mine * 128, kBoth);
        }
      } else {
        if (mine < halves_a) {
          copy_box_to_cluster(&p.a, a + mine * kHalfA, full, tile.k + k, tile.row + mine * 64,
                              kBoth);
        }
        for (int h = 0; h < halves_b; ++h) {
          copy_box(&p.b, b + h * kHalfB, full, tile.k + k, b_row + h * 128);
        }
      }
      ring.advance();
    }
  }
}

/// A warpgroup's view of the stages.
struct Consumer {
  Shared& shared;
  Ring ring;
  int warpgroup;  // 0 or 1

  OCTAVO_DEVICE void wait() { barrier_wait(shared_address(&shared.full[ring.stage]), ring.parity); }
  /// This warp is done with the stage: so say two lanes to the two blocks that load into it.
  OCTAVO_DEVICE void release(int stage) {
    const unsigned lane = threadIdx.x & 31;
    if (lane < 2) barrier_arrive(shared_address(&shared.empty[stage]), lane);
  }
  OCTAVO_DEVICE std::uint64_t a() const {
    return rows_descriptor(shared_address(shared.stages[ring.stage]) + warpgroup * kHalfA);
  }
  OCTAVO_DEVICE std::uint64_t b() const {
    return rows_descriptor(shared_address(shared.stages[ring.stage]) + 2 * kHalfA);
  }
  /// Zeros the stage's columns from `begin` to `end`, which belong to the next group: of both
  /// operands, whose NaN would survive a product with zero. The other warpgroup zeros b too; both
  /// may.
  OCTAVO_DEVICE void zero_columns(int begin, int end, int b_rows) {
    const int thread = static_cast<int>(threadIdx.x) & 127;
    const std::uint32_t b = shared_address(shared.stages[ring.stage]) + 2 * kHalfA;
    const std::uint32_t a = b - (2 - warpgroup) * kHalfA;
    for (int piece = begin / 16; piece < end / 16; ++piece) {
      const auto place = [&](int row) {  // the copy's swizzle
        return static_cast<std::uint32_t>(row * kDepth + ((piece ^ (row & 7)) << 4));
      };
      if (thread < 64) zero16_shared(a + place(thread));
      for (int row = thread; row < b_rows; row += 128) zero16_shared(b + place(row));
    }
    fence_async();
    named_barrier(1 + warpgroup, 128);
  }
};

/// d = or += the product of 32 (stage: 128) columns from a and b on; 64 x 256 or (not Wide) 64 x
/// 128.
template <bool Wide>
OCTAVO_DEVICE void multiply(float* d, std::uint64_t a, std::uint64_t b, bool accumulate) {
  if constexpr (Wide) {
    wgmma_m64n256k32(d, a, b, accumulate);
  } else {
    wgmma_m64n128k32(d, a, b, accumulate);
  }
}
template <bool Wide>
OCTAVO_DEVICE void multiply_stage(float* d, std::uint64_t a, std::uint64_t b, bool accumulate) {
#pragma unroll
  for (int i = 0; i < kDepth; i += kStep) {
    multiply<Wide>(d, a + (i >> 4), b + (i >> 4), accumulate || i > 0);
  }
}

/// acc += the sum over the tile's contraction.
///
/// A last stage that is not full: columns past K arrive as zeros, but those past a group's end are
/// the next group's. Fast: only the steps with columns of the group are taken, one at a time (ptxas
/// serialises all products of a kernel in which some stand under a condition). Full: they are
/// zeroed.
template <Product P, Accumulation A, bool Wide>
OCTAVO_DEVICE void sum(Consumer& c, float* acc, int length) {
  constexpr int kCount = Wide ? 128 : 64;
  constexpr bool kCut = P == Product::kContraction;
  const int blocks = kCut ? length / kDepth : tiles_along(length, kDepth);
  const int rest = length % kDepth;
  if constexpr (A == Accumulation::kFast) {
    int before = -1;
    hold<kCount>(acc);
    for (int i = 0; i < blocks; ++i) {
      c.wait();
      wgmma_fence();
      multiply_stage<Wide>(acc, c.a(), c.b(), true);
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0) c.release(before);
      before = c.ring.stage;
      c.ring.advance();
    }
    wgmma_wait<0>();
    hold<kCount>(acc);
    if (before >= 0) c.release(before);
    if (kCut && rest > 0) {
      c.wait();
      if (rest % kStep != 0) c.zero_columns(rest, rest + 16, 2 * kCount);
#pragma unroll 1
      for (int i = 0; i < rest; i += kStep) {
        hold<kCount>(acc);
        wgmma_fence();
        multiply<Wide>(acc, c.a() + (i >> 4), c.b() + (i >> 4), true);
        wgmma_commit();
        wgmma_wait<0>();
        hold<kCount>(acc);
      }
      c.release(c.ring.stage);
      c.ring.advance();
    }
  } else {
    // One set of registers for all parts: where the compiler knows that the first product of a part
    // overwrites it, it keeps two, and they do not fit.
    float part[64];
    const bool accumulate = length < 0;  // never
    for (int left = length; left > 0; left -= kDepth) {
      c.wait();
      if (kCut && left < kDepth) c.zero_columns(left, kDepth, 2 * kCount);
#pragma unroll
      for (int h = 0; h < kCount / 64; ++h) {
        hold<64>(part);
        wgmma_fence();
        multiply_stage<false>(part, c.a(), c.b() + h * (kHalfB >> 4), accumulate);
        wgmma_commit();
        wgmma_wait<0>();
        hold<64>(part);
        if (64 * h + 64 == kCount) c.release(c.ring.stage);
#pragma unroll
        for (int j = 0; j < 64; ++j) acc[64 * h + j] += part[j];
      }
      c.ring.advance();
    }
  }
}

/// Takes part in the ring for a tile that this warpgroup has no rows or columns of.
OCTAVO_DEVICE void pass(Consumer& c, int length) {
  for (int k = 0; k < length; k += kDepth) {
    c.wait();
    c.release(c.ring.stage);
    c.ring.advance();
  }
}

/// Scales the accumulators, rounds them and writes the rows and columns that exist. Each warp turns
/// its 16 rows around in its own shared memory, 64 columns at a time, to write whole lines.
template <int Count>
OCTAVO_DEVICE void write(const float (&acc)[Count], float scale_low, float scale_high,
                         const float* column_scale, std::uint32_t staging, std::uint16_t* out,
                         std::int64_t row_stride, int rows, int columns) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int matrix = lane / 8, in_matrix = lane & 7;
#pragma unroll
  for (int chunk = 0; chunk < Count / 32; ++chunk) {
    if (chunk * kChunk >= columns) break;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      std::uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* d = &acc[32 * chunk + 4 * (j + i)];
        const float2 scale = *reinterpret_cast<const float2*>(column_scale + chunk * kChunk +
                                                              8 * (j + i) + 2 * (lane & 3));
        packed[2 * i] = pack_bf16(d[0] * scale.x * scale_low, d[1] * scale.y * scale_low);
        packed[2 * i + 1] = pack_bf16(d[2] * scale.x * scale_high, d[3] * scale.y * scale_high);
      }
      const int row = (matrix & 1) * 8 + in_matrix, piece = j + matrix / 2;
      store_matrices(staging + row * (2 * kChunk) + ((piece ^ (row & 7)) << 4), packed[0],
                     packed[1], packed[2], packed[3]);
    }
    __syncwarp();
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
      const int row = 4 * pass + lane / 8, piece = lane & 7;
      const Words4 v = load16_shared(staging + row * (2 * kChunk) + ((piece ^ (row & 7)) << 4));
      const int column = chunk * kChunk + 8 * piece;
      if (row < rows && column < columns) {
        *reinterpret_cast<Words4*>(out + row * row_stride + column) = v;
      }
    }
    __syncwarp();
  }
}

/// A tile of which this warpgroup has rows and columns.
template <Product P, Accumulation A, bool Wide>
OCTAVO_DEVICE void compute_tile(const Params& p, Consumer& c, const Tile& tile,
                                float* column_scale) {
  const int thread = static_cast<int>(threadIdx.x) & 127, warp = thread / 32, lane = thread & 31;
  const int row_in_tile = 64 * c.warpgroup + 16 * warp;
  // The tile's rows of out among all groups' are also those of a_scale.
  const std::int64_t row = tile.row + row_in_tile +
                           (P == Product::kRows ? 0 : std::int64_t{tile.group} * p.extents.rows);
  const int rows = tile.rows - row_in_tile;  // this warp's, from row on
  // 0 * Inf would not be zero: a group without columns takes no scales.
  const bool low = lane / 4 < rows && tile.length > 0,
             high = lane / 4 + 8 < rows && tile.length > 0;
  const float scale_low = low ? load_early(p.a_scale + row + lane / 4) : 0.0f;
  const float scale_high = high ? load_early(p.a_scale + row + lane / 4 + 8) : 0.0f;
  const float* b_scale =
      p.b_scale + std::int64_t{tile.group} * p.extents.columns + tile.column + thread;
  float scales[Wide ? 2 : 1];
#pragma unroll
  for (int i = 0; i < (Wide ? 2 : 1); ++i) {
    const bool inside = thread + 128 * i < tile.columns && tile.length > 0;
    scales[i] = inside ? load_early(b_scale + 128 * i) : 0.0f;
  }
  float acc[Wide ? 128 : 64] = {};
  sum<P, A, Wide>(c, acc, tile.length);
#pragma unroll
  for (int i = 0; i < (Wide ? 2 : 1); ++i) column_scale[thread + 128 * i] = scales[i];
  named_barrier(1 + c.warpgroup, 128);
  write(acc, scale_low, scale_high, column_scale,
        shared_address(c.shared.staging[4 * c.warpgroup + warp]),
        p.out + row * p.extents.columns + tile.column, p.extents.columns, rows, tile.columns);
}

template <Product P, Accumulation A>
OCTAVO_DEVICE void compute(const Params& p, Shared& shared, Walk<P>& walk) {
  Consumer c{shared, {}, uniform(static_cast<int>(threadIdx.x) / 128)};
  Tile tile;
  for (int turn = 0; walk.next(tile); ++turn) {
    float* column_scale = shared.column_scale[c.warpgroup][turn & 1];
    if (tile.columns == 0 || tile.rows <= 64 * c.warpgroup) {
      pass(c, tile.length);
    } else if (tile.columns > 128) {
      compute_tile<P, A, true>(p, c, tile, column_scale);
    } else {
      compute_tile<P, A, false>(p, c, tile, column_scale);
    }
  }
}

template <Product P, Accumulation A>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 2 * kOutWarps);
    }
    barrier_init_fence();
    prefetch_tensor_map(&p.a);
    prefetch_tensor_map(&p.b);
  }
  make_table<P>(p.offs, p.extents, shared.table, reinterpret_cast<Group*>(&shared.staging[0][0]));
  cluster_barrier();

  const std::uint32_t rank = cluster_rank();
  Walk<P> walk(shared.table, p.extents, static_cast<int>(blockIdx.x / 2),
               static_cast<int>(gridDim.x / 2), static_cast<int>(rank));
  if (threadIdx.x >= 128 * kConsumers) {
    give_registers<kProducerRegisters>();
    const int thread = static_cast<int>(threadIdx.x) - 128 * kConsumers;
    if (thread < 32) {
      load(p, shared, walk, rank);
    } else if (P == Product::kRows && thread >= 32) {
      // Meanwhile the other warps zero the rows past the last group.
      const std::int64_t row_bytes = std::int64_t{2} * p.extents.columns;
      const std::int64_t end = p.extents.rows * row_bytes;
      for (std::int64_t at = shared.table[p.extents.groups].begin * row_bytes +
                             16 * (blockIdx.x * std::int64_t{96} + thread - 32);
           at < end; at += 16 * 96 * std::int64_t{gridDim.x}) {
        *reinterpret_cast<Words4*>(reinterpret_cast<char*>(p.out) + at) = {0, 0, 0, 0};
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    compute<P, A>(p, shared, walk);
  }
  __syncwarp();
  cluster_barrier();  // a block that is still loading or releasing needs its partner's memory
#endif
}

// ---------------------------------------------------------------------------------------------
// Host

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking libcuda.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess) {
      (void)cudaGetLastError();
      found = nullptr;
    }
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

/// Boxes of `box_rows` x 128 bytes of a row-major matrix.
bool describe(CUtensorMap& map, const void* data, std::int64_t rows, std::int64_t columns,
              unsigned box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns)};
  const cuuint32_t box[] = {kDepth, box_rows}, steps[] = {1, 1};
  return encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), sizes,
                        strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool is_hopper() {
  int device = 0, major = 0, minor = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major == 9 && minor == 0;
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

const char* problem(const void* a, const void* b, const void* out, std::int64_t rows,
                    std::int64_t columns, std::int64_t contraction, int groups) {
  constexpr std::int64_t kMax = 0x7FFFFFFF;
  if (!is_hopper()) return "the device is not of compute capability 9.0";
  if (!encode_tiled())
    return "the driver has no cuTensorMapEncodeTiled: CUDA 12 or newer is needed";
  if (groups > kMaxGroups) return "there are more than 512 groups";
  if (contraction % 16 != 0) return "the contraction's size is no multiple of 16";
  if (columns % 8 != 0) return "the result's columns are no multiple of 8";
  if (!is_aligned(a) || !is_aligned(b) || !is_aligned(out)) {
    return "a, b or out is not aligned to 16 bytes";
  }
  if (rows > kMax - 256 || contraction > kMax - 256 || columns > kMax - 256 ||
      groups * columns > kMax - 256) {
    return "a size passes 2^31";
  }
  return nullptr;
}

template <Product P, Accumulation A>
const char* launch(const Params& p, Stream stream) {
  const auto kernel = grouped_gemm_kernel<P, A>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)) !=
      cudaSuccess) {
    (void)cudaGetLastError();
    return "the device has too little shared memory, or the kernels were not compiled for sm_90a";
  }
  const int blocks = multiprocessors() / 2 * 2;
  kernel<<<blocks, kThreads, sizeof(Shared), static_cast<NativeStream>(stream)>>>(p);
  return nullptr;
}

template <Product P>
const char* run(Params& p, const void* a, std::int64_t a_rows, const void* b, std::int64_t b_rows,
                Accumulation accumulation, Stream stream) {
  if (!describe(p.a, a, a_rows, p.extents.contraction, 64) ||
      !describe(p.b, b, b_rows, p.extents.contraction, 128)) {
    return "the driver refused the operands' tensor maps";
  }
  return accumulation == Accumulation::kFast ? launch<P, Accumulation::kFast>(p, stream)
                                             : launch<P, Accumulation::kFull>(p, stream);
}

}  // namespace

const char* grouped_gemm_rows(const GroupedGemmRowsArgs& x, Stream stream) {
  if (const char* wrong = problem(x.a, x.b, x.out, x.M, x.N, x.K, x.E)) return wrong;
  if (x.M == 0 || x.N == 0) return nullptr;
  if (x.K == 0 || x.E == 0) {
    zero_async(x.out, static_cast<std::size_t>(2 * x.M * x.N), stream);
    return nullptr;
  }
  Params p{};
  p.extents = {x.E, static_cast<int>(x.M), static_cast<int>(x.N), static_cast<int>(x.K)};
  p.offs = x.offs, p.a_scale = x.a_scale, p.b_scale = x.b_scale;
  p.out = static_cast<std::uint16_t*>(x.out);
  return run<Product::kRows>(p, x.a, x.M, x.b, x.E * x.N, x.accumulation, stream);
}

const char* grouped_gemm_k(const GroupedGemmKArgs& x, Stream stream) {
  if (const char* wrong = problem(x.a, x.b, x.out, x.N, x.K, x.Mt, x.E)) return wrong;
  if (x.E == 0 || x.N == 0 || x.K == 0) return nullptr;
  if (x.Mt == 0) {
    zero_async(x.out, static_cast<std::size_t>(2 * x.E * x.N * x.K), stream);
    return nullptr;
  }
  Params p{};
  p.extents = {x.E, static_cast<int>(x.N), static_cast<int>(x.K), static_cast<int>(x.Mt)};
  p.offs = x.offs, p.a_scale = x.a_scale, p.b_scale = x.b_scale;
  p.out = static_cast<std::uint16_t*>(x.out);
  return run<Product::kContraction>(p, x.a, x.N, x.b, x.K, x.accumulation, stream);
}

}  // namespace octavo::gpu
