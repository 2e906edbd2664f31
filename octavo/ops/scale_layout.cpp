#include "octavo/ops/scale_layout.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <array>

namespace octavo::ops {

at::Tensor flatten_scale(const at::Tensor& scale, const Granularity& granularity) {
  const std::int64_t r = scale.size(0), c = scale.size(1);
  switch (default_scale_layout(granularity)) {
    case ScaleLayout::kColumnMajor:
      return scale.t().view({r * c});
    case ScaleLayout::kPadded4:
      return scale.as_strided({r * padded4(c)}, {1});
    default:
      return scale.view({r * c});
  }
}

at::Tensor unflatten_scale(std::string_view argument, const at::Tensor& flat,
                           const Granularity& granularity, std::int64_t rows,
                           std::int64_t columns) {
  const std::int64_t r = granularity.scale_rows(rows), c = granularity.scale_columns(columns);
  const ScaleLayout layout = default_scale_layout(granularity);
  const std::int64_t row = layout == ScaleLayout::kPadded4 ? padded4(c) : c;
  TORCH_CHECK(flat.dim() == 1 && flat.size(0) == r * row, argument, ": expected the ", r * row,
              " scales of a ", rows, " x ", columns, " matrix of granularity ",
              to_string(granularity), ", flat, got sizes ", flat.sizes(),
              "; pass what float8_linear_forward gave");
  switch (layout) {
    case ScaleLayout::kColumnMajor:
      return flat.view({c, r}).t();
    case ScaleLayout::kPadded4:
      return flat.as_strided({r, c}, {row, 1});
    default:
      return flat.view({r, c});
  }
}

at::Tensor in_default_layout(const at::Tensor& scale, const Granularity& granularity) {
  if (scale.dim() != 2) return scale;  // whoever uses it says what is wrong with it
  const std::int64_t r = scale.size(0), c = scale.size(1);
  std::array<std::int64_t, 2> strides = {c, 1};
  const ScaleLayout layout = default_scale_layout(granularity);
  if (layout == ScaleLayout::kColumnMajor) strides = {1, r};
  if (layout == ScaleLayout::kPadded4) strides = {padded4(c), 1};
  if (scale.strides() == at::IntArrayRef(strides)) return scale;
  at::Tensor out = at::empty_strided(scale.sizes(), strides, scale.options());
  out.copy_(scale);
  return out;
}

}  // namespace octavo::ops
