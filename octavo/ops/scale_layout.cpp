#include "octavo/ops/scale_layout.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "octavo/quantize/allocate.h"

namespace octavo::ops {

at::Tensor flatten_scale(const at::Tensor& scale, const Granularity& granularity) {
  const bool padded = default_scale_layout(granularity) == ScaleLayout::kPadded4;
  const std::int64_t count =
      padded ? scale.numel() / std::max<std::int64_t>(scale.size(-1), 1) * padded4(scale.size(-1))
             : scale.numel();
  return piece_of(scale, 0, {count}, {1}, scale.scalar_type());
}

at::Tensor unflatten_scale(std::string_view argument, const at::Tensor& flat,
                           const Granularity& granularity, std::int64_t rows,
                           std::int64_t columns) {
  const std::int64_t r = granularity.scale_rows(rows), c = granularity.scale_columns(columns);
  const std::int64_t row =
      default_scale_layout(granularity) == ScaleLayout::kPadded4 ? padded4(c) : c;
  TORCH_CHECK(flat.dim() == 1 && flat.size(0) == r * row && flat.is_contiguous(), argument,
              ": expected the ", r * row, " scales of a ", rows, " x ", columns,
              " matrix of granularity ", to_string(granularity), ", flat, got sizes ", flat.sizes(),
              "; pass the scale that was made with these bytes");
  return piece_of(flat, 0, {r, c}, default_scale_strides(granularity, r, c), flat.scalar_type());
}

at::Tensor in_default_layout(const at::Tensor& scale, const Granularity& granularity) {
  if (scale.dim() != 2 && scale.dim() != 3) return scale;  // whoever uses it says what is wrong
  const std::int64_t r = scale.size(-2), c = scale.size(-1);
  const auto [row, column] = default_scale_strides(granularity, r, c);
  std::vector<std::int64_t> strides = {row, column};
  if (scale.dim() == 3) strides.insert(strides.begin(), r * row);
  if (scale.strides() == at::IntArrayRef(strides)) return scale;
  at::Tensor out = at::empty_strided(scale.sizes(), strides, scale.options());
  out.copy_(scale);
  return out;
}

at::Tensor to_bytes(const at::Tensor& tensor) {
  return tensor.element_size() == 1
             ? piece_of(tensor, 0, tensor.sizes(), tensor.strides(), at::kByte)
             : tensor;
}

at::Tensor scale_bytes(const ScaledTensor& matrix) {
  return to_bytes(flatten_scale(matrix.scale, matrix.granularity));
}

ScaledTensor from_bytes(const char* scale_name, const at::Tensor& bytes, const at::Tensor& scale,
                        const LayoutSpec& spec) {
  const bool experts = bytes.dim() == 3;
  const std::int64_t rows = bytes.size(-2), columns = bytes.size(-1);
  ScaledTensor out{
      .data = piece_of(bytes, 0, bytes.sizes(), bytes.strides(), scalar_type(spec.format)),
      .scale = {},
      .granularity = spec.granularity,
      .scale_layout = default_scale_layout(spec.granularity),
      .logical_sizes = bytes.sizes().vec()};
  if (!experts) {
    out.scale = unflatten_scale(scale_name, scale, spec.granularity, rows, columns);
  } else {
    const std::int64_t r = spec.granularity.scale_rows(rows);
    const std::int64_t c = spec.granularity.scale_columns(columns);
    const std::int64_t row = out.scale_layout == ScaleLayout::kPadded4 ? padded4(c) : c;
    TORCH_CHECK(
        scale.dim() == 1 && scale.size(0) == bytes.size(0) * r * row && scale.is_contiguous(),
        scale_name, ": expected the ", bytes.size(0) * r * row, " scales of ", bytes.sizes(),
        " weights of granularity ", to_string(spec.granularity), ", flat, got sizes ",
        scale.sizes(), "; pass the scale that was made with these bytes");
    out.scale = scale.as_strided({bytes.size(0), r, c}, {r * row, row, 1});
  }
  if (spec.granularity.mx) {
    out.scale = piece_of(out.scale, 0, out.scale.sizes(), out.scale.strides(), at::kFloat8_e8m0fnu);
  }
  return out;
}

ScaledTensor grouped_from_bytes(const char* scale_name, const at::Tensor& bytes,
                                const at::Tensor& scale, const LayoutSpec& spec,
                                std::int64_t experts) {
  if (spec.granularity.block_columns != 0) return from_bytes(scale_name, bytes, scale, spec);
  TORCH_CHECK(scale.dim() == 1 && scale.size(0) == experts * bytes.size(0), scale_name,
              ": expected ", experts * bytes.size(0), " scales, one for each of ", experts,
              " groups and ", bytes.size(0), " columns, flat, got sizes ", scale.sizes(),
              "; pass the scale that was made with these bytes");
  return {.data = bytes.view(scalar_type(spec.format)),
          .scale = scale.view({experts, bytes.size(0)}),
          .granularity = spec.granularity,
          .scale_layout = ScaleLayout::kPlain,
          .logical_sizes = bytes.sizes().vec()};
}

at::Tensor absent(const at::Tensor& like, at::ScalarType dtype) {
  return empty_on(like.device(), {0}, dtype);
}

ScaledTensor scaled_tensor(const char* argument, const at::Tensor& data, const at::Tensor& scale,
                           std::string_view granularity) {
  ScaledTensor out;
  out.data = data;
  out.granularity = parse_granularity(argument, granularity);
  out.scale = in_default_layout(scale, out.granularity);
  out.scale_layout = default_scale_layout(out.granularity);
  out.logical_sizes = data.sizes().vec();
  return out;
}

}  // namespace octavo::ops
