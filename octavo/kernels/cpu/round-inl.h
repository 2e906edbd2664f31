// Vectors of fp32 rounded to 16-bit types. Compiled once per target: no include guard but Highway's
// toggle. Included by kernels of this folder, after foreach_target.h.
#if defined(OCTAVO_KERNELS_CPU_ROUND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_KERNELS_CPU_ROUND_INL_H_
#undef OCTAVO_KERNELS_CPU_ROUND_INL_H_
#else
#define OCTAVO_KERNELS_CPU_ROUND_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

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

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#endif
