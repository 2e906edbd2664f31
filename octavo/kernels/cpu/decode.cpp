#include "octavo/kernels/cpu/decode.h"

#include <algorithm>
#include <cstring>

#include "octavo/formats/codec.h"
#include "octavo/formats/e8m0.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/decode.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 32 bytes at a time: an MX block is one step, and with AVX2 it is one vector of bytes.
using DBytes = hn::CappedTag<std::uint8_t, 32>;
using DFloat = hn::CappedTag<float, 32>;
using DSigned = hn::Rebind<std::int8_t, DFloat>;
using DInt = hn::RebindToSigned<DFloat>;

// True if a byte of p[0, Lanes(DBytes)) is a NaN or an infinity.
template <Format kFormat>
HWY_INLINE bool AnySpecial(const std::uint8_t* HWY_RESTRICT p) {
  constexpr FormatLimits kLimits = limits(kFormat);
  const DBytes d;
  const auto bytes = hn::LoadU(d, p);
  if constexpr (kLimits.has_negative_zero) {
    // Magnitudes are below 128, so the signed comparison (the one AVX2 has) is right.
    const hn::RebindToSigned<DBytes> di;
    const auto magnitude = hn::BitCast(di, hn::And(bytes, hn::Set(d, 0x7F)));
    return !hn::AllFalse(
        di, hn::Gt(magnitude, hn::Set(di, static_cast<std::int8_t>(kLimits.max_byte))));
  } else {
    return !hn::AllFalse(d, hn::Eq(bytes, hn::Set(d, kLimits.nan_byte)));
  }
}

// Lanes(DFloat) finite bytes to fp32.
//
// The byte's exponent and mantissa, moved to fp32's place and rebased, are right for normal values;
// a subnormal s * 2^(1 - bias) (0 <= s < 1) comes out as w = (1 + s) * 2^-bias. With c = 2^-bias,
// 2w - 2c is right for those, and min(w, 2w - 2c) chooses: the two meet at w = 2c, the smallest
// normal. Nothing on the way is an fp32 subnormal, so neither flushing nor assists matter.
template <Format kFormat>
HWY_INLINE hn::Vec<DFloat> DecodeFinite(const std::uint8_t* HWY_RESTRICT p) {
  constexpr FormatLimits kLimits = limits(kFormat);
  constexpr int kShift = 23 - kLimits.mantissa_bits;
  constexpr std::int32_t kRebase = (127 - kLimits.bias) << 23;
  constexpr float kTwoC = internal::float_of(static_cast<std::uint32_t>(128 - kLimits.bias) << 23);
  const DFloat df;
  const DInt di;
  const auto bytes = hn::LoadU(DSigned(), reinterpret_cast<const std::int8_t*>(p));
  // Sign extension puts the sign into bit 31 after the shift, whatever the shift.
  const auto moved = hn::ShiftLeft<kShift>(hn::PromoteTo(di, bytes));
  const auto sign = hn::And(moved, hn::Set(di, INT32_MIN));
  const auto magnitude = hn::And(moved, hn::Set(di, 0x7F << kShift));
  const auto w = hn::BitCast(df, hn::Add(magnitude, hn::Set(di, kRebase)));
  const auto corrected = hn::MulSub(w, hn::Set(df, 2.0f), hn::Set(df, kTwoC));
  return hn::Or(hn::Min(w, corrected), hn::BitCast(df, sign));
}

template <Format kFormat, bool kScaled>
HWY_INLINE void DecodeStep(const std::uint8_t* HWY_RESTRICT data, float scale,
                           float* HWY_RESTRICT out) {
  const DFloat df;
  const std::size_t count = hn::Lanes(DBytes());
  if (HWY_UNLIKELY(AnySpecial<kFormat>(data))) {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = decode(kFormat, data[i]);
      out[i] = kScaled ? value * scale : value;
    }
    return;
  }
  const auto scales = hn::Set(df, scale);
#pragma GCC unroll 8  // 4 vectors with AVX2; -O2 keeps the loop, a third of its instructions
  for (std::size_t i = 0; i < count; i += hn::Lanes(df)) {
    auto value = DecodeFinite<kFormat>(data + i);
    if constexpr (kScaled) value = hn::Mul(value, scales);
    hn::StoreU(value, df, out + i);
  }
}

template <Format kFormat, bool kScaled>
HWY_INLINE void DecodeSpan(const std::uint8_t* HWY_RESTRICT data, std::int64_t size, float scale,
                           float* HWY_RESTRICT out) {
  const std::int64_t step = static_cast<std::int64_t>(hn::Lanes(DBytes()));
  std::int64_t i = 0;
  for (; i + step <= size; i += step) DecodeStep<kFormat, kScaled>(data + i, scale, out + i);
  if (i >= size) return;
  const std::size_t rest = static_cast<std::size_t>(size - i);
  std::uint8_t bytes[32] = {};  // DBytes is capped at 32
  float values[32];
  std::memcpy(bytes, data + i, rest);
  DecodeStep<kFormat, kScaled>(bytes, scale, values);
  std::memcpy(out + i, values, rest * sizeof(float));
}

template <Format kFormat>
void DecodeRowsOf(const DecodeArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  if (args.scale_kind == ScaleKind::kNone) {
    if (args.row_stride == args.columns && args.out_row_stride == args.columns) {
      const std::int64_t begin = row_begin * args.columns;
      DecodeSpan<kFormat, false>(args.data + begin, (row_end - row_begin) * args.columns, 1.0f,
                                 args.out + begin);
      return;
    }
    for (std::int64_t r = row_begin; r < row_end; ++r) {
      DecodeSpan<kFormat, false>(args.data + r * args.row_stride, args.columns, 1.0f,
                                 args.out + r * args.out_row_stride);
    }
    return;
  }
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const std::uint8_t* data = args.data + r * args.row_stride;
    float* out = args.out + r * args.out_row_stride;
    std::int64_t scale_at = r / args.block_rows * args.scale_row_stride;
    for (std::int64_t c = 0; c < args.columns; c += args.block_columns) {
      const float scale = args.scale_kind == ScaleKind::kFloat
                              ? static_cast<const float*>(args.scale)[scale_at]
                              : decode_e8m0(static_cast<const std::uint8_t*>(args.scale)[scale_at]);
      const std::int64_t size = std::min(args.block_columns, args.columns - c);
      DecodeSpan<kFormat, true>(data + c, size, scale, out + c);
      scale_at += args.scale_column_stride;
    }
  }
}

void DecodeRows(const DecodeArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  switch (args.format) {
    case Format::kE4M3FN:
      return DecodeRowsOf<Format::kE4M3FN>(args, row_begin, row_end);
    case Format::kE5M2:
      return DecodeRowsOf<Format::kE5M2>(args, row_begin, row_end);
    case Format::kE4M3FNUZ:
      return DecodeRowsOf<Format::kE4M3FNUZ>(args, row_begin, row_end);
    case Format::kE5M2FNUZ:
      return DecodeRowsOf<Format::kE5M2FNUZ>(args, row_begin, row_end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace octavo::kernels {

HWY_EXPORT(DecodeRows);

void decode_rows(const DecodeArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  HWY_DYNAMIC_DISPATCH(DecodeRows)(args, row_begin, row_end);
}

}  // namespace octavo::kernels
#endif  // HWY_ONCE
