#include "octavo/kernels/cpu/epilogue.h"

#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/epilogue.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "octavo/kernels/cpu/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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
