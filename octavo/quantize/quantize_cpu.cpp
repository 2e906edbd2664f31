#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "octavo/kernels/block_scale.h"
#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/quantize_rows.h"
#include "octavo/kernels/cpu/quantize_tiles.h"
#include "octavo/quantize/amax.h"
#include "octavo/quantize/quantize_device.h"
#include "octavo/quantize/split.h"

namespace octavo {
namespace {

using kernels::Blocks;
using kernels::ConstMatrix;
using kernels::HighPrecision;
using kernels::LayoutTarget;

enum class Orientation : std::uint8_t { kRows, kTransposed };

HighPrecision high_precision_of(at::ScalarType dtype) {
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

// The inv_scales of a target whose blocks span x, from a finished amax pass.
std::vector<float> inv_scales_of(const LayoutTarget& target, const Amax& amax) {
  const auto of = [&](const float* amaxes, std::size_t n, std::int64_t stride) {
    std::vector<float> inv_scale(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) * stride;
      inv_scale[i] = kernels::write_block_scale(target, amaxes[i], at);
    }
    return inv_scale;
  };
  if (target.blocks == Blocks::kWhole) return of(&amax.whole, 1, 0);
  if (target.blocks == Blocks::kRow) {
    return of(amax.rows.data(), amax.rows.size(), target.scale_row_stride);
  }
  return of(amax.columns.data(), amax.columns.size(), target.scale_column_stride);
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

// What `given` knows of the wanted amaxes, or nullopt unless it knows them all.
std::optional<Amax> known_amax(const Amaxes& given, bool whole, const AmaxSpec& lines) {
  const auto missing = [](bool wanted, const at::Tensor& amax) {
    return wanted && !amax.defined();
  };
  if (missing(whole, given.tensor) || missing(lines.rows, given.rows) ||
      missing(lines.columns, given.columns)) {
    return std::nullopt;
  }
  const auto numbers = [](bool wanted, const at::Tensor& amax) -> std::vector<float> {
    if (!wanted) return {};
    const float* const first = amax.const_data_ptr<float>();
    return {first, first + amax.numel()};
  };
  return Amax{.whole = whole ? *given.tensor.const_data_ptr<float>() : 0.0f,
              .rows = numbers(lines.rows, given.rows),
              .columns = numbers(lines.columns, given.columns)};
}

// `rows` and `transposed` (null: not wanted) as the layouts of x itself; `given` of x as it is
// here.
void quantize(const ConstMatrix& x, LayoutTarget* rows, LayoutTarget* transposed,
              const Amaxes& given) {
  const auto is = [&](Blocks blocks) {
    return (rows != nullptr && rows->blocks == blocks) ||
           (transposed != nullptr && transposed->blocks == blocks);
  };
  const bool by_rows =
      transposed == nullptr && x.column_stride == 1 && (is(Blocks::kWhole) || is(Blocks::kRow));
  const bool empty = x.rows == 0 || x.columns == 0;
  std::vector<float> row_inv_scales, transposed_inv_scales;
  const AmaxSpec lines{.rows = is(Blocks::kRow), .columns = is(Blocks::kColumn)};
  const bool spans = is(Blocks::kWhole) || lines.rows || lines.columns;
  const std::optional<Amax> known =
      spans ? known_amax(given, is(Blocks::kWhole), lines) : std::nullopt;
  // A row's amax is found while the row is in cache for its cast.
  const bool amax_in_cast = by_rows && lines.rows && !known && !empty;
  if (spans && !amax_in_cast) {
    const Amax amax = known ? *known : amax_pass(x, lines);
    if (rows != nullptr && spans_x(rows->blocks)) {
      row_inv_scales = inv_scales_of(*rows, amax);
      rows->inv_scale = row_inv_scales.data();
    }
    if (transposed != nullptr && spans_x(transposed->blocks)) {
      transposed_inv_scales = inv_scales_of(*transposed, amax);
      transposed->inv_scale = transposed_inv_scales.data();
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

void quantize_cpu(const at::Tensor& x, const OperandSpec& spec, QuantizedOperand& out) {
  const ConstMatrix matrix = matrix_of(x);
  // A transposed view is its base with the layouts' roles exchanged.
  const bool exchanged = matrix.column_stride != 1 && matrix.row_stride == 1;
  const Orientation upright = exchanged ? Orientation::kTransposed : Orientation::kRows;
  const Orientation turned = exchanged ? Orientation::kRows : Orientation::kTransposed;
  LayoutTarget rows, transposed;
  if (spec.rows) rows = target_of(*spec.rows, out.rows, upright);
  if (spec.transposed) transposed = target_of(*spec.transposed, out.transposed, turned);
  LayoutTarget* const wanted_rows = spec.rows ? &rows : nullptr;
  LayoutTarget* const wanted_transposed = spec.transposed ? &transposed : nullptr;
  Amaxes given = spec.amax;
  if (exchanged) {
    std::swap(given.rows, given.columns);
    quantize(transpose_of(matrix), wanted_transposed, wanted_rows, given);
  } else {
    quantize(matrix, wanted_rows, wanted_transposed, given);
  }
}

void find_amaxes_cpu(const at::Tensor& x, Amaxes& out) {
  ConstMatrix matrix = matrix_of(x);
  if (matrix.column_stride != 1 && matrix.row_stride == 1) {
    matrix = transpose_of(matrix);
    std::swap(out.rows, out.columns);
  }
  const Amax amax =
      amax_pass(matrix, {.rows = out.rows.defined(), .columns = out.columns.defined()});
  const auto write = [](const at::Tensor& to, const float* from) {
    if (to.defined()) std::copy_n(from, to.numel(), to.mutable_data_ptr<float>());
  };
  write(out.tensor, &amax.whole);
  write(out.rows, amax.rows.data());
  write(out.columns, amax.columns.data());
}

}  // namespace octavo
