#include "octavo/quantize/quantize.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <vector>

#include "octavo/kernels/counter.h"

namespace octavo {
namespace {

constexpr Granularity kSupported[] = {
    Granularity::tensorwise(),  Granularity::rowwise(),     Granularity::colwise(),
    Granularity::block_1x128(), Granularity::block_128x1(), Granularity::block_128x128(),
    Granularity::mx_1x32(),
};

void check_layout(const LayoutSpec& spec, const char* layout) {
  bool supported = false;
  for (const Granularity& granularity : kSupported) supported |= spec.granularity == granularity;
  TORCH_CHECK(supported, "spec.", layout, ".granularity: expected tensorwise, rowwise, colwise, ",
              "1x128, 128x1, 128x128 or mx1x32, got ", to_string(spec.granularity),
              "; use one of Granularity's named instances");
  TORCH_CHECK(!spec.granularity.mx || flavour_of(spec.format) == Flavour::kOCP, "spec.", layout,
              ".format: MX is defined for e4m3fn and e5m2 only, got ", name(spec.format),
              "; use the recipe rowwise with FNUZ formats, or an OCP format with MX");
}

// Scales of `granularity` for an R x C matrix in the layout products expect.
at::Tensor empty_scale(const Granularity& granularity, std::int64_t rows, std::int64_t columns) {
  const std::int64_t r = granularity.scale_rows(rows), c = granularity.scale_columns(columns);
  const at::ScalarType dtype = granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat;
  switch (default_scale_layout(granularity)) {
    case ScaleLayout::kColumnMajor:
      return at::empty_strided({r, c}, {1, r}, dtype);
    case ScaleLayout::kPadded4:
      return at::empty_strided({r, c}, {(c + 3) / 4 * 4, 1}, dtype);
    default:
      return at::empty({r, c}, dtype);
  }
}

ScaledTensor empty_layout(const LayoutSpec& spec, std::int64_t rows, std::int64_t columns) {
  ScaledTensor out;
  out.data = at::empty({rows, columns}, scalar_type(spec.format));
  out.scale = empty_scale(spec.granularity, rows, columns);
  out.granularity = spec.granularity;
  out.scale_layout = default_scale_layout(spec.granularity);
  out.logical_sizes = {rows, columns};
  return out;
}

template <class T>
float magnitude(const T* x) {
  const float value = static_cast<float>(*x);
  return value < 0 ? -value : value;
}

// One layout, element by element: x is (R, C) with the given strides.
template <class T>
void quantize_layout(const T* x, std::int64_t row_stride, std::int64_t column_stride,
                     const LayoutSpec& spec, const ScaledTensor& out) {
  const std::int64_t rows = out.rows(), columns = out.columns();
  const Granularity& g = spec.granularity;
  const std::int64_t block_rows = g.block_rows ? g.block_rows : rows;
  const std::int64_t block_columns = g.block_columns ? g.block_columns : columns;
  auto* data = static_cast<std::uint8_t*>(out.data.data_ptr());
  void* scale = out.scale.data_ptr();
  for (std::int64_t i = 0; i < out.scale.size(0); ++i) {
    for (std::int64_t j = 0; j < out.scale.size(1); ++j) {
      const std::int64_t r0 = i * block_rows, r1 = std::min(rows, r0 + block_rows);
      const std::int64_t c0 = j * block_columns, c1 = std::min(columns, c0 + block_columns);
      float amax = 0;
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          const float m = magnitude(x + r * row_stride + c * column_stride);
          if (!(m <= amax)) amax = amax != amax ? amax : m;
        }
      }
      float inv_scale;
      const std::int64_t at = i * out.scale.stride(0) + j * out.scale.stride(1);
      if (g.mx) {
        const std::uint8_t code = mx_code_of(amax, spec.format, spec.mx_rounding);
        static_cast<std::uint8_t*>(scale)[at] = code;
        inv_scale = inv_scale_e8m0(code);
      } else {
        inv_scale = inv_scale_of(amax, spec.format, spec.scale_rounding);
        static_cast<float*>(scale)[at] = scale_of(inv_scale);
      }
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          data[r * columns + c] = quantize_element(
              static_cast<float>(x[r * row_stride + c * column_stride]), inv_scale, spec.format);
        }
      }
    }
  }
}

}  // namespace

QuantizedOperand quantize_operand(const at::Tensor& x, const OperandSpec& spec) {
  TORCH_CHECK(x.dim() == 2, "x: expected a matrix (M, K), got ", x.dim(), " dimensions of sizes ",
              x.sizes(), "; flatten the leading dimensions with reshape({-1, K})");
  TORCH_CHECK(x.device().is_cpu(), "x: expected a CPU tensor, got one on ", x.device(),
              "; move it with x.cpu()");
  TORCH_CHECK(spec.rows || spec.transposed,
              "spec: expected at least one layout, got neither rows nor transposed; set one");
  if (spec.rows) check_layout(*spec.rows, "rows");
  if (spec.transposed) check_layout(*spec.transposed, "transposed");
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
              "x: expected float32, bfloat16 or float16, got ", dtype,
              "; convert it with x.to(torch::kFloat)");

  const std::int64_t m = x.size(0), k = x.size(1);
  QuantizedOperand out;
  if (spec.rows) out.rows = empty_layout(*spec.rows, m, k);
  if (spec.transposed) out.transposed = empty_layout(*spec.transposed, k, m);
  const auto run = [&]<class T>(const T* data) {
    if (spec.rows) quantize_layout(data, x.stride(0), x.stride(1), *spec.rows, out.rows);
    if (spec.transposed) {
      quantize_layout(data, x.stride(1), x.stride(0), *spec.transposed, out.transposed);
    }
  };
  if (dtype == at::kFloat) run(x.const_data_ptr<float>());
  if (dtype == at::kBFloat16) run(x.const_data_ptr<at::BFloat16>());
  if (dtype == at::kHalf) run(x.const_data_ptr<at::Half>());

  // Counted as the finished kernels will run: a pass that only reads where a scale spans more than
  // a cached row or tile, and one pass that writes.
  const auto whole = [](const std::optional<LayoutSpec>& layout) {
    return layout &&
           (layout->granularity.block_rows == 0 || layout->granularity.block_columns == 0);
  };
  const bool rows_in_cache = !spec.transposed && spec.rows->granularity == Granularity::rowwise();
  if (x.numel() > 0) {
    if ((whole(spec.rows) || whole(spec.transposed)) && !rows_in_cache) {
      ++kernels::counters().amax;
    }
    ++kernels::counters().quantize;
  }
  return out;
}

}  // namespace octavo
