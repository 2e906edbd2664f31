#pragma once

#include "octavo/kernels/gpu/types.h"

/// Grouped FP8 products on Hopper's tensor cores (sm_90a), e4m3fn operands, bf16 results.
///
/// Group sizes are read on the device: no host synchronisation, any sizes, empty groups too. Sums
/// are fp32, scales are applied to the fp32 sum (blocks: to the sum of each block), one rounding to
/// bf16 (nearest even). NaN and Inf stay in their own row, column and group. Results do not depend
/// on the other groups, and are the same bits in every run.
namespace octavo::gpu {

/// How tensor cores' partial sums reach fp32.
enum class Accumulation : std::uint8_t {
  kFast,  ///< the tensor cores' own, about 14 bits of mantissa
  kFull,  ///< added to fp32 registers every 128 of the contraction
};

/// What one scale spans.
enum class Scaling : std::uint8_t {
  kVectors,  ///< the whole contraction of a row of a, of a row of b
  kBlocks,   ///< 128 of the contraction; sums are always Accumulation::kFull
};

/// At most this many groups.
inline constexpr int kMaxGroups = 512;

/// out[m, n] = a_scale[m] * b_scale[g, n] * sum over k of a[m, k] * b[g, n, k]
///
/// for the rows m of group g: offs[g-1] (0 for the first) to offs[g]; zero for rows past the last
/// offset, whose a and a_scale are not looked at. Each end is clamped to [previous end, M]. Blocks:
///
///   out[m, n] = sum over blocks i of a_scale[m, i] * b_scale[g, n / 128, i] * sum over k in i
///   of...
struct GroupedGemmRowsArgs {
  const std::uint8_t* a = nullptr;     ///< (M, K), row-major
  const std::uint8_t* b = nullptr;     ///< (E, N, K), row-major
  const float* a_scale = nullptr;      ///< (M); blocks: (M, ceil(K/128)), strides (1, a_block)
  const float* b_scale = nullptr;      ///< (E, N); blocks: (E, ceil(N/128), ceil(K/128)),
                                       ///< strides (b_group, b_row, 1)
  const std::int32_t* offs = nullptr;  ///< (E), ends
  void* out = nullptr;                 ///< (M, N) bf16, row-major
  std::int64_t M = 0, N = 0, K = 0;
  int E = 0;
  Accumulation accumulation = Accumulation::kFast;
  Scaling scaling = Scaling::kVectors;
  std::int64_t a_block = 0, b_group = 0, b_row = 0;  ///< strides of block scales
  /// Optional: one int on the device that is zero, and is zero again afterwards; products that may
  /// run at the same time need their own. With it, tiles of unlike cost are shared out as they are
  /// done.
  std::int32_t* counter = nullptr;
};

/// out[g, n, k] = a_scale[g, n] * b_scale[g, k] * sum over m of a[n, m] * b[k, m]
///
/// for the columns m of group g: offs[g-1] (0 for the first) to offs[g], multiples of 16; exactly
/// zero for a group without columns. Each end is clamped to [previous end, Mt]. Blocks: ends are
/// multiples of 128, and
///
///   out[g, n, k] = sum over g's blocks i of a_scale[n, i] * b_scale[k, i] * sum over m in i of ...
struct GroupedGemmKArgs {
  const std::uint8_t* a = nullptr;     ///< (N, Mt), row-major
  const std::uint8_t* b = nullptr;     ///< (K, Mt), row-major
  const float* a_scale = nullptr;      ///< (E, N); blocks: (N, ceil(Mt/128)), strides (1, a_block)
  const float* b_scale = nullptr;      ///< (E, K); blocks: (K, ceil(Mt/128)), strides (1, b_block)
  const std::int32_t* offs = nullptr;  ///< (E), ends
  void* out = nullptr;                 ///< (E, N, K) bf16, row-major
  std::int64_t N = 0, K = 0, Mt = 0;
  int E = 0;
  Accumulation accumulation = Accumulation::kFast;
  Scaling scaling = Scaling::kVectors;
  std::int64_t a_block = 0, b_block = 0;  ///< strides of block scales
  /// Add to what out holds: the bits of writing and adding afterwards in fp32.
  bool accumulate = false;
  std::int32_t* counter = nullptr;  ///< as GroupedGemmRowsArgs
};

/// Both return null, or what is wrong, in words for the caller's error message; then nothing was
/// launched. They need: a device of compute capability 9.0, contraction (K; Mt) a multiple of 16,
/// columns of out (N; K) a multiple of 8, a, b and out aligned to 16 bytes, E <= kMaxGroups, sizes
/// below 2^31. Empty sizes give empty or zero results.
[[nodiscard]] const char* grouped_gemm_rows(const GroupedGemmRowsArgs& args, Stream stream);
[[nodiscard]] const char* grouped_gemm_k(const GroupedGemmKArgs& args, Stream stream);

}  // namespace octavo::gpu
