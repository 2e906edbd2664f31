#include "octavo/quantize/check.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace octavo {
namespace {

constexpr std::string_view kRepair = "; pass the scale quantize_operand() made for this data";

bool is_fp8(at::ScalarType dtype) {
  return std::any_of(std::begin(kAllFormats), std::end(kAllFormats),
                     [=](Format format) { return scalar_type(format) == dtype; });
}

void check_data(const ScaledTensor& matrix, std::string_view argument) {
  TORCH_CHECK(matrix.data.defined(), argument,
              ".data: expected an FP8 tensor, got none; this layout of the operand was not asked "
              "for in quantize_operand()");
  TORCH_CHECK(is_fp8(matrix.data.scalar_type()), argument,
              ".data: expected an FP8 dtype (float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, "
              "float8_e5m2fnuz), got ",
              matrix.data.scalar_type(), "; quantise it first with quantize_operand()");
  TORCH_CHECK(matrix.data.dim() == 2 && matrix.logical_sizes.size() == 2, argument,
              ".data and logical_sizes: expected 2 dimensions (rows, columns), got sizes ",
              matrix.data.sizes(), " and ", at::IntArrayRef(matrix.logical_sizes),
              "; flatten the leading dimensions first");
  TORCH_CHECK(matrix.data.size(0) >= matrix.rows() && matrix.data.size(1) >= matrix.columns() &&
                  matrix.rows() >= 0 && matrix.columns() >= 0,
              argument, ".data: expected at least logical_sizes ",
              at::IntArrayRef(matrix.logical_sizes), ", got ", matrix.data.sizes(),
              "; set logical_sizes to the unpadded sizes");
  TORCH_CHECK(matrix.data.size(1) <= 1 || matrix.data.stride(1) == 1, argument,
              ".data: expected contiguous columns (products run along them), got strides ",
              matrix.data.strides(), "; quantise the transposed layout instead of viewing it");
}

// The strides of the layout, for sizes where they matter.
bool has_layout(const at::Tensor& scale, ScaleLayout layout) {
  if (scale.numel() == 0 && layout != ScaleLayout::kTiled128x4) return true;
  const std::int64_t rows = scale.size(0), columns = scale.size(1);
  const bool any_row_stride = rows <= 1, any_column_stride = columns <= 1;
  switch (layout) {
    case ScaleLayout::kPlain:
      return (any_column_stride || scale.stride(1) == 1) &&
             (any_row_stride || scale.stride(0) == columns);
    case ScaleLayout::kColumnMajor:
      return (any_column_stride || scale.stride(1) == rows) &&
             (any_row_stride || scale.stride(0) == 1);
    case ScaleLayout::kPadded4:
      return (any_column_stride || scale.stride(1) == 1) &&
             (any_row_stride || (scale.stride(0) >= columns && scale.stride(0) % 4 == 0));
    case ScaleLayout::kTiled128x4:
      return false;
  }
  return false;
}

constexpr std::string_view strides_of(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::kPlain:
      return "row-major strides";
    case ScaleLayout::kColumnMajor:
      return "strides (1, rows of scales)";
    case ScaleLayout::kPadded4:
      return "strides (columns of scales padded to a multiple of 4, 1)";
    case ScaleLayout::kTiled128x4:
      return "a layout other than 128x4 tiles, which only GPUs read,";
  }
  return "";
}

void check_scale(const ScaledTensor& matrix, std::string_view argument) {
  const Granularity& granularity = matrix.granularity;
  TORCH_CHECK(matrix.scale.defined(), argument, ".scale: expected a tensor, got none", kRepair);
  const at::ScalarType expected = granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat;
  TORCH_CHECK(matrix.scale.scalar_type() == expected, argument, ".scale: expected dtype ", expected,
              " for granularity ", to_string(granularity), ", got ", matrix.scale.scalar_type(),
              granularity.mx ? "; MX scales are e8m0 codes and an fp32 scale is never read as one"
                             : "; only granularity mx1x32 reads e8m0 codes",
              kRepair);
  TORCH_CHECK(!granularity.mx || flavour_of(matrix.format()) == Flavour::kOCP, argument,
              ".data: expected an OCP format (e4m3fn or e5m2) for granularity ",
              to_string(granularity), ", got ", name(matrix.format()),
              "; MX is defined for OCP formats only, use rowwise");
  const std::int64_t rows = granularity.scale_rows(matrix.rows());
  const std::int64_t columns = granularity.scale_columns(matrix.columns());
  TORCH_CHECK(
      matrix.scale.dim() == 2 && matrix.scale.size(0) == rows && matrix.scale.size(1) == columns,
      argument, ".scale: expected sizes [", rows, ", ", columns, "] for ", to_string(granularity),
      " data of logical sizes ", at::IntArrayRef(matrix.logical_sizes), ", got ",
      matrix.scale.sizes(), kRepair);
  TORCH_CHECK(has_layout(matrix.scale, matrix.scale_layout), argument, ".scale: expected ",
              strides_of(matrix.scale_layout), " for its scale_layout, got strides ",
              matrix.scale.strides(), kRepair);
  TORCH_CHECK(matrix.scale.device() == matrix.data.device(), argument, ".scale: expected device ",
              matrix.data.device(), " as data, got ", matrix.scale.device(),
              "; move the ScaledTensor's data and scale together");
}

}  // namespace

void check_scaled_tensor(const ScaledTensor& matrix, std::string_view argument) {
  check_data(matrix, argument);
  check_scale(matrix, argument);
}

void check_expert_weights(const ScaledTensor& weights, std::string_view argument) {
  TORCH_CHECK(
      weights.data.defined() && weights.data.dim() == 3 && weights.logical_sizes.size() == 3 &&
          weights.scale.defined() && weights.scale.dim() == 3,
      argument, ": expected experts' weights with data (E, rows, columns) and a scale of 3 ",
      "dimensions, got ", weights.data.defined() ? weights.data.dim() : 0, " and ",
      weights.scale.defined() ? weights.scale.dim() : 0,
      "; quantise them with quantize_expert_weights()");
  const std::int64_t experts = weights.data.size(0);
  TORCH_CHECK(weights.logical_sizes[0] == experts && weights.scale.size(0) == experts, argument,
              ": expected as many experts in data, scale and logical_sizes, got ", experts, ", ",
              weights.scale.size(0), " and ", weights.logical_sizes[0],
              "; quantise them with quantize_expert_weights()");
  // Experts have one set of sizes and strides: the first stands for all.
  if (experts > 0) check_scaled_tensor(expert(weights, 0), argument);
}

}  // namespace octavo
