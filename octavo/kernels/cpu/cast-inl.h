// Rows of high-precision elements to FP8 bytes with scales that are known. Compiled once per
// target, as simd-inl.h.
#if defined(OCTAVO_KERNELS_CPU_CAST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_KERNELS_CPU_CAST_INL_H_
#undef OCTAVO_KERNELS_CPU_CAST_INL_H_
#else
#define OCTAVO_KERNELS_CPU_CAST_INL_H_
#endif

#include <cstring>

#include "octavo/kernels/block_scale.h"
#include "octavo/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

/// Elements with a NaN or Inf in their block (or a NaN inv_scale), one by one.
template <class T>
HWY_NOINLINE void CastSlowly(const typename T::Bits* x, std::int64_t n, float inv_scale,
                             Format format, std::uint8_t* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = quantize_element(value_of(T::kType, x[i]), inv_scale, format);
  }
}

/// kChunk elements, the halves of the chunk with an inv_scale each.
template <class T, int kMantissa>
HWY_INLINE void CastChunk(const Encoder<kMantissa>& encoder, const typename T::Bits* x, VF first,
                          VF second, std::uint8_t* out) {
  hn::StoreU(encoder.template Encode<T::kInterleaved>(Scaled(T::Load(x), first, second)), D8(),
             out);
}

/// out[i] = cast(x[i] * inv_scale), any n. Reads and writes nothing outside [0, n).
template <class T, int kMantissa>
HWY_INLINE void CastUniform(const Encoder<kMantissa>& encoder, const typename T::Bits* x,
                            std::int64_t n, float inv_scale, Format format, std::uint8_t* out) {
  if (HWY_UNLIKELY(!is_finite_block(inv_scale))) {
    return CastSlowly<T>(x, n, inv_scale, format, out);
  }
  const VF s = hn::Set(DF(), inv_scale);
  std::int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) CastChunk<T>(encoder, x + i, s, s, out + i);
  if (i == n) return;
  if (n > kChunk) {  // overlapping: some bytes are written twice, the same both times
    CastChunk<T>(encoder, x + n - kChunk, s, s, out + n - kChunk);
    return;
  }
  typename T::Bits padded[kChunk] = {};
  std::uint8_t bytes[kChunk];
  std::memcpy(padded, x, static_cast<std::size_t>(n) * sizeof(*x));
  CastChunk<T>(encoder, padded, s, s, bytes);
  std::memcpy(out, bytes, static_cast<std::size_t>(n));
}

/// out[i] = cast(x[i] * inv_scale[i / 32]), any n up to 128. inv_scale has ceil(n / 32) entries.
template <class T, int kMantissa>
HWY_INLINE void CastMxRow(const Encoder<kMantissa>& encoder, const typename T::Bits* x,
                          std::int64_t n, const float* inv_scale, Format format,
                          std::uint8_t* out) {
  const std::int64_t blocks = (n + 31) / 32;
  bool finite = true;
  for (std::int64_t b = 0; b < blocks; ++b) finite &= is_finite_block(inv_scale[b]);
  std::int64_t i = 0;
  if (HWY_LIKELY(finite)) {
    // A chunk of 64 has two blocks, one for each half.
    constexpr std::int64_t kSecond = kChunk == 64 ? 1 : 0;
    for (; i + kChunk <= n; i += kChunk) {
      CastChunk<T>(encoder, x + i, hn::Set(DF(), inv_scale[i / 32]),
                   hn::Set(DF(), inv_scale[i / 32 + kSecond]), out + i);
    }
  }
  while (i < n) {
    const std::int64_t end = i / 32 * 32 + 32 < n ? i / 32 * 32 + 32 : n;
    CastUniform<T>(encoder, x + i, end - i, inv_scale[i / 32], format, out + i);
    i = end;
  }
}

/// The columns' inv_scales in the lane order of a chunk, so that they are plain loads for
/// CastByColumn: n is a multiple of kChunk.
template <class T>
HWY_INLINE void LaneOrder(const float* inv_scale, std::int64_t n, float* out) {
  if constexpr (!T::kInterleaved) {
    std::memcpy(out, inv_scale, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    // Within 2 * kLanes elements, block b holds elements 8 b + (0..3) in the first vector and
    // 8 b + (4..7) in the second.
    for (std::int64_t i = 0; i < n; i += 2 * kLanes) {
      for (std::int64_t b = 0; b < kLanes / 4; ++b) {
        std::memcpy(out + i + 4 * b, inv_scale + i + 8 * b, 4 * sizeof(float));
        std::memcpy(out + i + kLanes + 4 * b, inv_scale + i + 8 * b + 4, 4 * sizeof(float));
      }
    }
  }
}

/// out[i] = cast(x[i] * inv_scale of column i), n a multiple of kChunk, inv_scales from LaneOrder()
/// and all of them is_finite_block().
template <class T, int kMantissa>
HWY_INLINE void CastByColumn(const Encoder<kMantissa>& encoder, const typename T::Bits* x,
                             std::int64_t n, const float* inv_scales, std::uint8_t* out) {
  const DF f;
  for (std::int64_t i = 0; i < n; i += kChunk) {
    const Chunk c = T::Load(x + i);
    const float* s = inv_scales + i;
    const Chunk scaled = {hn::Mul(c.v0, hn::LoadU(f, s)), hn::Mul(c.v1, hn::LoadU(f, s + kLanes)),
                          hn::Mul(c.v2, hn::LoadU(f, s + 2 * kLanes)),
                          hn::Mul(c.v3, hn::LoadU(f, s + 3 * kLanes))};
    hn::StoreU(encoder.template Encode<T::kInterleaved>(scaled), D8(), out + i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#endif
