#include "octavo/kernels/cpu/quantize_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/quantize_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which sets the target these see.
#include "octavo/kernels/cpu/cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

template <class T, int kMantissa>
void QuantizeRowsT(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                   const LayoutTarget& target) {
  const Encoder<kMantissa> encoder(target.format);
  for (std::int64_t r = begin; r < end; ++r) {
    const auto* row = static_cast<const typename T::Bits*>(x.data) + r * x.row_stride;
    std::uint8_t* out = target.data + r * target.stride;
    float inv_scale;
    if (target.inv_scale != nullptr) {
      inv_scale = target.inv_scale[target.blocks == Blocks::kRow ? r : 0];
    } else {
      const float amax = value_of(T::kType, AmaxBits<T>(row, x.columns));
      inv_scale = write_block_scale(target, amax, r * target.scale_row_stride);
    }
    CastUniform<T>(encoder, row, x.columns, inv_scale, target.format, out);
  }
}

template <class T>
void QuantizeRowsOf(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                    const LayoutTarget& target) {
  if (limits(target.format).mantissa_bits == 3) return QuantizeRowsT<T, 3>(x, begin, end, target);
  QuantizeRowsT<T, 2>(x, begin, end, target);
}

void QuantizeRows(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                  const LayoutTarget& target) {
  switch (x.type) {
    case HighPrecision::kFloat32:
      return QuantizeRowsOf<Float32>(x, begin, end, target);
    case HighPrecision::kBFloat16:
      return QuantizeRowsOf<BFloat16>(x, begin, end, target);
    case HighPrecision::kFloat16:
      return QuantizeRowsOf<Float16>(x, begin, end, target);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace octavo::kernels {
HWY_EXPORT(QuantizeRows);

void quantize_rows(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                   const LayoutTarget& target) {
  HWY_DYNAMIC_DISPATCH(QuantizeRows)(x, begin, end, target);
}
}  // namespace octavo::kernels
#endif
