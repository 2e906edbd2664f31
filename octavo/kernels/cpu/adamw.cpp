#include "octavo/kernels/cpu/adamw.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/adamw.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "octavo/kernels/cpu/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <HighPrecision kType>
using AdamwElement = std::conditional_t<kType == HighPrecision::kFloat32, float, std::uint16_t>;

HWY_INLINE hn::Vec<DFloat> LoadFloats(const float* p) { return hn::LoadU(DFloat(), p); }
HWY_INLINE hn::Vec<DFloat> LoadFloats(const std::uint16_t* p) {
  const DWord d;
  return hn::BitCast(DFloat(), hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(DOut16(), p))));
}
HWY_INLINE void StoreFloats(hn::Vec<DFloat> x, float* p) { hn::StoreU(x, DFloat(), p); }
HWY_INLINE void StoreFloats(hn::Vec<DFloat> x, std::uint16_t* p) {
  hn::StoreU(ToBFloat16(x), DOut16(), p);
}

// A vector of elements at these addresses.
template <class P, class G, class M, bool kMaster>
HWY_INLINE void AdamwStep(const AdamwFactors& f, P* parameter, float* master, const G* gradient,
                          M* exp_avg, M* exp_avg_sq) {
  const DFloat d;
  const auto g = hn::Mul(LoadFloats(gradient), hn::Set(d, f.clip));
  auto p = kMaster ? LoadFloats(master) : LoadFloats(parameter);
  auto m = LoadFloats(exp_avg), v = LoadFloats(exp_avg_sq);
  p = hn::Mul(p, hn::Set(d, f.decay));
  m = hn::Add(f.lerp_from_moment ? m : g, hn::Mul(hn::Set(d, f.lerp), hn::Sub(g, m)));
  v = hn::Add(hn::Mul(v, hn::Set(d, f.beta2)),
              hn::Mul(hn::Mul(hn::Set(d, f.one_minus_beta2), g), g));
  const auto denominator =
      hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, f.root_factor)), hn::Set(d, f.eps));
  p = hn::Add(p, hn::Div(hn::Mul(hn::Set(d, f.negative_step_size), m), denominator));
  StoreFloats(m, exp_avg);
  StoreFloats(v, exp_avg_sq);
  if (kMaster) StoreFloats(p, master);
  StoreFloats(p, parameter);
}

template <HighPrecision kP, HighPrecision kG, HighPrecision kM, bool kMaster>
void AdamwOf(const AdamwTensor& tensor, const AdamwFactors& f, std::int64_t begin,
             std::int64_t end) {
  using P = AdamwElement<kP>;
  using G = AdamwElement<kG>;
  using M = AdamwElement<kM>;
  const std::int64_t step = static_cast<std::int64_t>(hn::Lanes(DFloat()));
  P* const p = static_cast<P*>(tensor.parameter);
  const G* const g = static_cast<const G*>(tensor.gradient);
  M* const m = static_cast<M*>(tensor.exp_avg);
  M* const v = static_cast<M*>(tensor.exp_avg_sq);
  std::int64_t i = begin;
  for (; i + step <= end; i += step) {
    AdamwStep<P, G, M, kMaster>(f, p + i, kMaster ? tensor.master + i : nullptr, g + i, m + i,
                                v + i);
  }
  if (i == end) return;
  const std::size_t rest = static_cast<std::size_t>(end - i);
  P p_rest[16] = {};  // DFloat is capped at 16
  float master_rest[16] = {};
  G g_rest[16] = {};
  M m_rest[16] = {}, v_rest[16] = {};
  std::memcpy(p_rest, p + i, rest * sizeof(P));
  std::memcpy(g_rest, g + i, rest * sizeof(G));
  std::memcpy(m_rest, m + i, rest * sizeof(M));
  std::memcpy(v_rest, v + i, rest * sizeof(M));
  if (kMaster) std::memcpy(master_rest, tensor.master + i, rest * sizeof(float));
  AdamwStep<P, G, M, kMaster>(f, p_rest, master_rest, g_rest, m_rest, v_rest);
  std::memcpy(p + i, p_rest, rest * sizeof(P));
  std::memcpy(m + i, m_rest, rest * sizeof(M));
  std::memcpy(v + i, v_rest, rest * sizeof(M));
  if (kMaster) std::memcpy(tensor.master + i, master_rest, rest * sizeof(float));
}

template <HighPrecision kP, bool kMaster>
void AdamwDispatch(const AdamwTensor& tensor, const AdamwTypes& types, const AdamwFactors& f,
                   std::int64_t begin, std::int64_t end) {
  constexpr HighPrecision k32 = HighPrecision::kFloat32, k16 = HighPrecision::kBFloat16;
  const bool g16 = types.gradient == k16, m16 = types.moments == k16;
  if (g16 && m16) return AdamwOf<kP, k16, k16, kMaster>(tensor, f, begin, end);
  if (g16) return AdamwOf<kP, k16, k32, kMaster>(tensor, f, begin, end);
  if (m16) return AdamwOf<kP, k32, k16, kMaster>(tensor, f, begin, end);
  return AdamwOf<kP, k32, k32, kMaster>(tensor, f, begin, end);
}

void Adamw(const AdamwTensor& tensor, const AdamwTypes& types, const AdamwFactors& f,
           std::int64_t begin, std::int64_t end) {
  constexpr HighPrecision k32 = HighPrecision::kFloat32, k16 = HighPrecision::kBFloat16;
  if (types.parameter == k32) return AdamwDispatch<k32, false>(tensor, types, f, begin, end);
  if (types.has_master) return AdamwDispatch<k16, true>(tensor, types, f, begin, end);
  return AdamwDispatch<k16, false>(tensor, types, f, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace octavo::kernels {

HWY_EXPORT(Adamw);

void adamw(const AdamwTensor& tensor, const AdamwTypes& types, const AdamwFactors& factors,
           std::int64_t begin, std::int64_t end) {
  if (std::isnan(factors.clip)) return;
  HWY_DYNAMIC_DISPATCH(Adamw)(tensor, types, factors, begin, end);
}

}  // namespace octavo::kernels
#endif  // HWY_ONCE
