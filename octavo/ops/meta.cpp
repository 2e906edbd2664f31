#include "octavo/ops/meta.h"

#include <ATen/Functions.h>

#include <vector>

namespace octavo::ops {
namespace {

// Granularity::scale_rows and scale_columns for symbolic extents.
c10::SymInt blocks(const c10::SymInt& extent, std::int64_t block) {
  if (block == 0) return 1;
  if (block == 1) return extent;
  return (extent + (block - 1)) / block;
}

}  // namespace

c10::SymInt leading_size(const at::Tensor& x) {
  c10::SymInt rows = 1;
  for (std::int64_t i = 0; i + 1 < x.dim(); ++i) rows = rows * x.sym_size(i);
  return rows;
}

at::Tensor empty_like_with_columns(const at::Tensor& x, const c10::SymInt& columns) {
  std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
  sizes.back() = columns;
  return at::empty_symint(sizes, x.options());
}

at::Tensor empty_scale_meta(const at::Tensor& like, const Granularity& granularity,
                            const c10::SymInt& rows, const c10::SymInt& columns) {
  const c10::SymInt r = blocks(rows, granularity.block_rows);
  const c10::SymInt c = blocks(columns, granularity.block_columns);
  const at::TensorOptions options =
      like.options().dtype(granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat);
  switch (default_scale_layout(granularity)) {
    case ScaleLayout::kColumnMajor:
      return at::empty_strided_symint({r, c}, {1, r}, options);
    case ScaleLayout::kPadded4:
      return at::empty_strided_symint({r, c}, {padded4(c), 1}, options);
    default:
      return at::empty_symint({r, c}, options);
  }
}

at::Tensor empty_expert_scale_meta(const at::Tensor& like, const Granularity& granularity,
                                   const c10::SymInt& experts, const c10::SymInt& rows,
                                   const c10::SymInt& columns) {
  const c10::SymInt r = blocks(rows, granularity.block_rows);
  const c10::SymInt c = blocks(columns, granularity.block_columns);
  const c10::SymInt row =
      default_scale_layout(granularity) == ScaleLayout::kPadded4 ? padded4(c) : c;
  return at::empty_strided_symint(
      {experts, r, c}, {r * row, row, 1},
      like.options().dtype(granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat));
}

at::Tensor empty_flat_scale_meta(const at::Tensor& like, const Granularity& granularity,
                                 const c10::SymInt& rows, const c10::SymInt& columns) {
  return empty_flat_expert_scale_meta(like, granularity, 1, rows, columns);
}

at::Tensor empty_flat_expert_scale_meta(const at::Tensor& like, const Granularity& granularity,
                                        const c10::SymInt& experts, const c10::SymInt& rows,
                                        const c10::SymInt& columns) {
  const c10::SymInt c = blocks(columns, granularity.block_columns);
  const bool padded = default_scale_layout(granularity) == ScaleLayout::kPadded4;
  const c10::SymInt count =
      experts * blocks(rows, granularity.block_rows) * (padded ? padded4(c) : c);
  return at::empty_symint({count}, like.options().dtype(granularity.mx ? at::kByte : at::kFloat));
}

at::Tensor empty_flat_grouped_scale_meta(const at::Tensor& like, const Granularity& granularity,
                                         const c10::SymInt& experts, const c10::SymInt& rows,
                                         const c10::SymInt& columns) {
  if (granularity.block_columns != 0) {
    return empty_flat_scale_meta(like, granularity, rows, columns);
  }
  return at::empty_symint({experts * rows}, like.options().dtype(at::kFloat));
}

at::Tensor nothing(const at::Tensor& like, at::ScalarType dtype) {
  return at::empty_symint({0}, like.options().dtype(dtype));
}

}  // namespace octavo::ops
