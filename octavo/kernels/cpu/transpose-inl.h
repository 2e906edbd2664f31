// Transposes a tile of bytes. Compiled once per target, as simd-inl.h.
#if defined(OCTAVO_KERNELS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_KERNELS_CPU_TRANSPOSE_INL_H_
#undef OCTAVO_KERNELS_CPU_TRANSPOSE_INL_H_
#else
#define OCTAVO_KERNELS_CPU_TRANSPOSE_INL_H_
#endif

#include "octavo/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

/// Columns one call of Transpose16Rows() turns into rows: 16 in each 128-bit block, two blocks.
inline constexpr std::int64_t kTransposeColumns = HWY_MAX_BYTES < 32 ? 16 : 32;

/// out[c * out_stride + r] = in[r * in_stride + c] for r < 16, c < kTransposeColumns.
///
/// Four rounds of interleaving rows r and r + 8: each round doubles the run of consecutive rows
/// that lie together, so after the fourth a 128-bit block holds one column.
HWY_INLINE void Transpose16Rows(const std::uint8_t* in, std::int64_t in_stride, std::uint8_t* out,
                                std::int64_t out_stride) {
  const hn::CappedTag<std::uint8_t, kTransposeColumns> d;
  using V = hn::Vec<decltype(d)>;
  V a[16], b[16];
  OCTAVO_UNROLL
  for (int r = 0; r < 16; ++r) a[r] = hn::LoadU(d, in + r * in_stride);
  const auto round = [d](const V* from, V* to) HWY_ATTR {
    OCTAVO_UNROLL
    for (int r = 0; r < 8; ++r) {
      to[2 * r] = hn::InterleaveLower(d, from[r], from[r + 8]);
      to[2 * r + 1] = hn::InterleaveUpper(d, from[r], from[r + 8]);
    }
  };
  round(a, b);
  round(b, a);
  round(a, b);
  round(b, a);
  OCTAVO_UNROLL
  for (int c = 0; c < 16; ++c) {
    std::uint8_t* to = out + c * out_stride;
    if constexpr (kTransposeColumns == 16) {
      hn::StoreU(a[c], d, to);
    } else {
      const hn::Half<decltype(d)> half;
      hn::StoreU(hn::LowerHalf(half, a[c]), half, to);
      hn::StoreU(hn::UpperHalf(half, a[c]), half, to + 16 * out_stride);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#endif
