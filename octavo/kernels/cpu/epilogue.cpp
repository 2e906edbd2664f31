#include "octavo/kernels/cpu/epilogue.h"

#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/epilogue.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DFloat = hn::CappedTag<float, 16>;
using DWord = hn::RebindToUnsigned<DFloat>;
using DOut16 = hn::Rebind<std::uint16_t, DFloat>;

// Words below 65536 to 16 bits.
HWY_INLINE hn::Vec<DOut16> Narrow(hn::Vec<DWord> x) {
  return hn::DemoteTo(DOut16(), hn::BitCast(hn::RebindToSigned<DWord>(), x));
}

// Both 16-bit roundings are integer arithmetic of our own: Highway 1.0.3 truncates to bf16, and
// where F16C is missing it does not know fp16's NaN and infinities.

HWY_INLINE hn::Vec<DOut16> ToBFloat16(hn::Vec<DFloat> x) {
  const DWord dw;
  const auto bits = hn::BitCast(dw, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(dw, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(dw, 0x7FFFu)), odd));
  const auto is_nan = hn::RebindMask(dw, hn::IsNaN(x));
  return Narrow(hn::IfThenElse(is_nan, hn::Set(dw, 0x7FC0u), rounded));
}

HWY_INLINE hn::Vec<DOut16> ToHalf(hn::Vec<DFloat> x) {
  const DFloat df;
  const DWord dw;
  const auto bits = hn::BitCast(dw, x);
  const auto magnitude = hn::And(bits, hn::Set(dw, 0x7FFFFFFFu));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(dw, 0x8000u));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(dw, 1u));
  // Rebase the exponent from 127 to 15 and round in one addition; fp16's exponent overflows into
  // infinity by itself.
  const auto rebased = hn::Sub(hn::Add(magnitude, hn::Set(dw, 0xFFFu)), hn::Set(dw, 112u << 23));
  auto half = hn::ShiftRight<13>(hn::Add(rebased, odd));
  // Below 2^-14 a step is 2^-24, the step of fp32 between 0.5 and 1: adding 0.5 rounds.
  const auto shifted = hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(dw, shifted), hn::Set(dw, 126u << 23));
  half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(dw, 113u << 23)), subnormal, half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(dw, 143u << 23)), hn::Set(dw, 0x7C00u), half);
  half = hn::Or(half, sign);
  half = hn::IfThenElse(hn::RebindMask(dw, hn::IsNaN(x)), hn::Set(dw, 0x7E00u), half);
  return Narrow(half);
}

template <HighPrecision kOut>
using OutElement = std::conditional_t<kOut == HighPrecision::kFloat32, float, std::uint16_t>;

template <HighPrecision kOut>
HWY_INLINE void Store(hn::Vec<DFloat> x, OutElement<kOut>* out) {
  if constexpr (kOut == HighPrecision::kFloat32) {
    hn::StoreU(x, DFloat(), out);
  } else if constexpr (kOut == HighPrecision::kBFloat16) {
    hn::StoreU(ToBFloat16(x), DOut16(), out);
  } else {
    hn::StoreU(ToHalf(x), DOut16(), out);
  }
}

// One vector of a row. No pointer is HWY_RESTRICT here: out may be acc.
template <HighPrecision kOut>
HWY_INLINE void EpilogueStep(const float* acc, hn::Vec<DFloat> scale_a, hn::Vec<DFloat> scale_b,
                             const float* bias, OutElement<kOut>* out) {
  const DFloat df;
  auto value = hn::Mul(hn::Mul(hn::LoadU(df, acc), scale_a), scale_b);
  if (bias != nullptr) value = hn::Add(value, hn::LoadU(df, bias));
  Store<kOut>(value, out);
}

template <HighPrecision kOut>
void EpilogueRowsOf(const EpilogueArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  const DFloat df;
  const std::int64_t step = static_cast<std::int64_t>(hn::Lanes(df));
  const bool repeat_b = args.scale_b_stride == 0;
  const auto repeated_b = hn::Set(df, args.scale_b[0]);
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const auto scale_a = hn::Set(df, args.scale_a[m * args.scale_a_stride]);
    const float* acc = args.acc + m * args.columns;
    OutElement<kOut>* out = static_cast<OutElement<kOut>*>(args.out) + m * args.columns;
    std::int64_t n = 0;
    for (; n + step <= args.columns; n += step) {
      const auto scale_b = repeat_b ? repeated_b : hn::LoadU(df, args.scale_b + n);
      const float* bias = args.bias == nullptr ? nullptr : args.bias + n;
      EpilogueStep<kOut>(acc + n, scale_a, scale_b, bias, out + n);
    }
    if (n == args.columns) continue;
    const std::size_t rest = static_cast<std::size_t>(args.columns - n);
    float acc_rest[16] = {};  // DFloat is capped at 16
    float scale_rest[16] = {};
    float bias_rest[16] = {};
    OutElement<kOut> out_rest[16];
    std::memcpy(acc_rest, acc + n, rest * sizeof(float));
    if (!repeat_b) std::memcpy(scale_rest, args.scale_b + n, rest * sizeof(float));
    if (args.bias != nullptr) std::memcpy(bias_rest, args.bias + n, rest * sizeof(float));
    EpilogueStep<kOut>(acc_rest, scale_a, repeat_b ? repeated_b : hn::LoadU(df, scale_rest),
                       args.bias == nullptr ? nullptr : bias_rest, out_rest);
    std::memcpy(out + n, out_rest, rest * sizeof(OutElement<kOut>));
  }
}

void EpilogueRows(const EpilogueArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  if (args.columns == 0) return;  // scale_b may then be empty too
  switch (args.out_type) {
    case HighPrecision::kFloat32:
      return EpilogueRowsOf<HighPrecision::kFloat32>(args, row_begin, row_end);
    case HighPrecision::kBFloat16:
      return EpilogueRowsOf<HighPrecision::kBFloat16>(args, row_begin, row_end);
    case HighPrecision::kFloat16:
      return EpilogueRowsOf<HighPrecision::kFloat16>(args, row_begin, row_end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace octavo::kernels {

HWY_EXPORT(EpilogueRows);

void epilogue_rows(const EpilogueArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  HWY_DYNAMIC_DISPATCH(EpilogueRows)(args, row_begin, row_end);
}

}  // namespace octavo::kernels
#endif  // HWY_ONCE
