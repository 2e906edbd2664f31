#include "octavo/quantize/quantize.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "octavo/kernels/block_scale.h"
#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/quantize_rows.h"
#include "octavo/kernels/cpu/quantize_tiles.h"
#include "octavo/quantize/amax.h"
#include "octavo/quantize/split.h"

namespace octavo {
namespace {

using kernels::Blocks;
using kernels::ConstMatrix;
using kernels::HighPrecision;
using kernels::LayoutTarget;

enum class Orientation : std::uint8_t { kRows, kTransposed };

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

// kPadded4's rows of r x c scales, padding 0.
at::Tensor padded_scale(std::int64_t r, std::int64_t c) {
  const std::int64_t row = padded4(c);
  const at::Tensor whole = at::empty({r * row}, at::kFloat);
  std::fill_n(whole.mutable_data_ptr<float>(), r * row, 0.0f);
  return whole.as_strided({r, c}, {row, 1});
}

// Scales of `granularity` for an R x C matrix in the layout products expect.
at::Tensor empty_scale(const Granularity& granularity, std::int64_t rows, std::int64_t columns) {
  const std::int64_t r = granularity.scale_rows(rows), c = granularity.scale_columns(columns);
  const at::ScalarType dtype = granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat;
  switch (default_scale_layout(granularity)) {
    case ScaleLayout::kColumnMajor:
      return at::empty_strided({r, c}, {1, r}, dtype);
    case ScaleLayout::kPadded4:
      return padded_scale(r, c);
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

HighPrecision high_precision_of(at::ScalarType dtype) {
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
              "x: expected float32, bfloat16 or float16, got ", dtype,
              "; convert it with x.to(torch::kFloat)");
  if (dtype == at::kFloat) return HighPrecision::kFloat32;
  return dtype == at::kBFloat16 ? HighPrecision::kBFloat16 : HighPrecision::kFloat16;
}

ConstMatrix matrix_of(const at::Tensor& x) {
  ConstMatrix matrix{x.const_data_ptr(), high_precision_of(x.scalar_type()),
                     x.size(0),          x.size(1),
                     x.stride(0),        x.stride(1)};
  // The stride of an extent of 1 means nothing and can be anything.
  if (matrix.columns == 1) matrix.column_stride = 1;
  if (matrix.rows == 1) matrix.row_stride = matrix.columns;
  return matrix;
}

ConstMatrix transpose_of(ConstMatrix x) {
  std::swap(x.rows, x.columns);
  std::swap(x.row_stride, x.column_stride);
  return x;
}

// The blocks of a layout whose rows are x's rows (granularity as it stands) or x's columns
// (granularity swapped).
Blocks blocks_of(const Granularity& g) {
  if (g.mx) return g.block_rows == 1 ? Blocks::kMx1x32 : Blocks::kMx32x1;
  if (g == Granularity::tensorwise()) return Blocks::kWhole;
  if (g == Granularity::rowwise()) return Blocks::kRow;
  if (g == Granularity::colwise()) return Blocks::kColumn;
  if (g == Granularity::block_1x128()) return Blocks::k1x128;
  if (g == Granularity::block_128x1()) return Blocks::k128x1;
  return Blocks::k128x128;
}

// Where the kernels write `out`, a layout whose rows are x's rows, or x's columns if transposed.
LayoutTarget target_of(const LayoutSpec& spec, const ScaledTensor& out, Orientation orientation) {
  const bool transposed = orientation == Orientation::kTransposed;
  LayoutTarget target;
  target.blocks = blocks_of(transposed ? spec.granularity.swapped() : spec.granularity);
  target.format = spec.format;
  target.scale_rounding = spec.scale_rounding;
  target.mx_rounding = spec.mx_rounding;
  target.data = static_cast<std::uint8_t*>(out.data.data_ptr());
  target.stride = out.data.stride(0);
  target.scale = out.scale.data_ptr();
  target.scale_row_stride = out.scale.stride(transposed ? 1 : 0);
  target.scale_column_stride = out.scale.stride(transposed ? 0 : 1);
  return target;
}

bool spans_x(Blocks blocks) {
  return blocks == Blocks::kWhole || blocks == Blocks::kRow || blocks == Blocks::kColumn;
}

// Factors and scales of a target whose blocks span x, from a finished amax pass.
std::vector<float> factors_of(const LayoutTarget& target, const Amax& amax) {
  const auto factors = [&](const float* amaxes, std::size_t n, std::int64_t stride) {
    std::vector<float> inv_scale(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) * stride;
      inv_scale[i] = kernels::write_block_scale(target, amaxes[i], at);
    }
    return inv_scale;
  };
  if (target.blocks == Blocks::kWhole) return factors(&amax.whole, 1, 0);
  if (target.blocks == Blocks::kRow) {
    return factors(amax.rows.data(), amax.rows.size(), target.scale_row_stride);
  }
  return factors(amax.columns.data(), amax.columns.size(), target.scale_column_stride);
}

// The rows layout alone: whole rows at a time.
void cast_rows(const ConstMatrix& matrix, LayoutTarget target) {
  ConstMatrix x = matrix;
  if (target.blocks == Blocks::kWhole) {
    x = as_long_rows(matrix);
    target.stride = x.columns;
  }
  at::parallel_for(0, x.rows, grain(x.columns), [&](std::int64_t begin, std::int64_t end) {
    kernels::quantize_rows(x, begin, end, target);
  });
}

void cast_tiles(const ConstMatrix& x, const LayoutTarget* rows, const LayoutTarget* transposed) {
  at::parallel_for(0, kernels::tile_count(x.rows, x.columns),
                   grain(kernels::kTile * kernels::kTile),
                   [&](std::int64_t begin, std::int64_t end) {
                     kernels::quantize_tiles(x, begin, end, rows, transposed);
                   });
}

// `rows` and `transposed` (null: not wanted) as the layouts of x itself.
void quantize(const ConstMatrix& x, LayoutTarget* rows, LayoutTarget* transposed) {
  const auto is = [&](Blocks blocks) {
    return (rows != nullptr && rows->blocks == blocks) ||
           (transposed != nullptr && transposed->blocks == blocks);
  };
  const bool by_rows =
      transposed == nullptr && x.column_stride == 1 && (is(Blocks::kWhole) || is(Blocks::kRow));
  // A row's amax is found while the row is in cache for its cast.
  const bool amax_in_cast = by_rows && is(Blocks::kRow);
  const bool empty = x.rows == 0 || x.columns == 0;
  std::vector<float> row_factors, transposed_factors;
  if ((is(Blocks::kWhole) || is(Blocks::kRow) || is(Blocks::kColumn)) && (empty || !amax_in_cast)) {
    const Amax amax = amax_pass(x, {.rows = is(Blocks::kRow), .columns = is(Blocks::kColumn)});
    if (rows != nullptr && spans_x(rows->blocks)) {
      row_factors = factors_of(*rows, amax);
      rows->inv_scale = row_factors.data();
    }
    if (transposed != nullptr && spans_x(transposed->blocks)) {
      transposed_factors = factors_of(*transposed, amax);
      transposed->inv_scale = transposed_factors.data();
    }
  }
  if (empty) return;
  ++kernels::counters().quantize;
  if (by_rows) {
    cast_rows(x, *rows);
  } else {
    cast_tiles(x, rows, transposed);
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
  const ConstMatrix matrix = matrix_of(x);

  const std::int64_t m = x.size(0), k = x.size(1);
  QuantizedOperand out;
  if (spec.rows) out.rows = empty_layout(*spec.rows, m, k);
  if (spec.transposed) out.transposed = empty_layout(*spec.transposed, k, m);

  // A transposed view is its base with the layouts' roles exchanged.
  const bool exchanged = matrix.column_stride != 1 && matrix.row_stride == 1;
  const Orientation upright = exchanged ? Orientation::kTransposed : Orientation::kRows;
  const Orientation turned = exchanged ? Orientation::kRows : Orientation::kTransposed;
  LayoutTarget rows, transposed;
  if (spec.rows) rows = target_of(*spec.rows, out.rows, upright);
  if (spec.transposed) transposed = target_of(*spec.transposed, out.transposed, turned);
  LayoutTarget* const wanted_rows = spec.rows ? &rows : nullptr;
  LayoutTarget* const wanted_transposed = spec.transposed ? &transposed : nullptr;
  if (exchanged) {
    quantize(transpose_of(matrix), wanted_transposed, wanted_rows);
  } else {
    quantize(matrix, wanted_rows, wanted_transposed);
  }
  return out;
}

}  // namespace octavo
