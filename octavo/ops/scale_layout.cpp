#include "octavo/ops/scale_layout.h"

#include <ATen/Functions.h>

#include <array>

namespace octavo::ops {

at::Tensor in_default_layout(const at::Tensor& scale, const Granularity& granularity) {
  if (scale.dim() != 2) return scale;  // whoever uses it says what is wrong with it
  std::array<std::int64_t, 2> strides = {scale.size(1), 1};
  const ScaleLayout layout = default_scale_layout(granularity);
  if (layout == ScaleLayout::kColumnMajor) strides = {1, scale.size(0)};
  if (layout == ScaleLayout::kPadded4) strides = {(scale.size(1) + 3) / 4 * 4, 1};
  if (scale.strides() == at::IntArrayRef(strides)) return scale;
  at::Tensor out = at::empty_strided(scale.sizes(), strides, scale.options());
  out.copy_(scale);
  return out;
}

}  // namespace octavo::ops
