#include "octavo/kernels/cpu/quantize_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/quantize_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which sets the target these see.
#include "octavo/kernels/cpu/cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

// One row's blocks of 128 columns, each a 1x128 block or up to four MX blocks.
template <class T, int kMantissa>
HWY_INLINE void QuantizeRowInBlocks(const Encoder<kMantissa>& encoder, const typename T::Bits* x,
                                    std::int64_t columns, const LayoutTarget& target,
                                    std::int64_t row, std::uint8_t* out) {
  const bool mx = target.blocks == Blocks::kMx1x32;
  for (std::int64_t c = 0; c < columns; c += 128) {
    const std::int64_t n = columns - c < 128 ? columns - c : 128;
    const std::int64_t width = mx ? 32 : 128;
    float inv_scale[4];
    for (std::int64_t b = 0; b * width < n; ++b) {
      const std::int64_t block_n = n - b * width < width ? n - b * width : width;
      const float amax = value_of(T::kType, AmaxBits<T>(x + c + b * width, block_n));
      inv_scale[b] = write_block_scale(
          target, amax,
          row * target.scale_row_stride + (c / width + b) * target.scale_column_stride);
    }
    if (mx) {
      CastMxRow<T>(encoder, x + c, n, inv_scale, target.format, out + c);
    } else {
      CastUniform<T>(encoder, x + c, n, inv_scale[0], target.format, out + c);
    }
  }
}

template <class T, int kMantissa>
void QuantizeRowsT(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                   const LayoutTarget& target) {
  const Encoder<kMantissa> encoder(target.format);
  for (std::int64_t r = begin; r < end; ++r) {
    const auto* row = static_cast<const typename T::Bits*>(x.data) + r * x.row_stride;
    std::uint8_t* out = target.data + r * target.stride;
    float inv_scale;
    if (target.blocks == Blocks::kWhole) {
      inv_scale = target.inv_scale[0];
    } else if (target.blocks != Blocks::kRow) {
      QuantizeRowInBlocks<T>(encoder, row, x.columns, target, r, out);
      continue;
    } else if (target.inv_scale != nullptr) {
      inv_scale = target.inv_scale[r];
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
