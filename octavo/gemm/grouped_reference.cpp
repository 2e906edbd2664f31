#include <ATen/Functions.h>

#include "octavo/gemm/grouped_backends.h"
#include "octavo/gemm/scaled_mm.h"
#include "octavo/quantize/offsets.h"

namespace octavo {
namespace {

// The rows of one group as a matrix by itself. Column-major scales are copied: products want them
// without gaps.
ScaledTensor rows_of_group(const ScaledTensor& a, const Group& group) {
  ScaledTensor out = a;
  const std::int64_t rows = group.size();
  out.data = a.data.narrow(0, group.begin, rows);
  out.scale = a.scale.narrow(0, group.begin, rows);
  if (a.scale_layout == ScaleLayout::kColumnMajor) {
    out.scale =
        at::empty_strided(out.scale.sizes(), {1, rows}, out.scale.options()).copy_(out.scale);
  }
  out.logical_sizes = {rows, a.columns()};
  return out;
}

// The columns of group g, up to their aligned end, as a matrix by itself.
ScaledTensor columns_of_group(const ScaledTensor& a, std::int64_t g, const Group& group) {
  ScaledTensor out = a;
  out.data = a.data.narrow(1, group.begin, group.size());
  const std::int64_t block = a.granularity.block_columns;
  if (block == 0) {
    out.scale = a.scale.select(0, g).unsqueeze(1);
  } else {
    out.scale = a.scale.narrow(1, group.begin / block, group.size() / block);
    if (a.granularity.mx) {  // rows of codes without gaps
      out.scale = out.scale.view(at::kByte).contiguous().view(at::kFloat8_e8m0fnu);
    }
  }
  out.logical_sizes = {a.rows(), group.size()};
  return out;
}

MatmulOptions dense(const GroupedMatmulOptions& options) {
  return {.out_dtype = options.out_dtype, .fast_accumulation = options.fast_accumulation};
}

}  // namespace

at::Tensor grouped_mm_reference(const ScaledTensor& a, const ScaledTensor& b,
                                const at::Tensor& offs, const GroupedMatmulOptions& options) {
  const at::Tensor out = at::empty({a.rows(), b.rows()}, a.data.options().dtype(options.out_dtype));
  std::int64_t g = 0;
  for (const Group& group : groups_of(offs, 1)) {
    if (group.size() > 0) {
      out.narrow(0, group.begin, group.size())
          .copy_(scaled_mm(rows_of_group(a, group), expert(b, g), dense(options)));
    }
    ++g;
  }
  zero_rows_past(out, offs);
  return out;
}

at::Tensor grouped_mm_k_reference(const ScaledTensor& a, const ScaledTensor& b,
                                  const at::Tensor& offs_transposed,
                                  const GroupedMatmulOptions& options) {
  const at::Tensor out = at::empty({offs_transposed.size(0), a.rows(), b.rows()},
                                   a.data.options().dtype(options.out_dtype));
  std::int64_t g = 0;
  for (const Group& group : groups_of(offs_transposed, 1)) {
    const at::Tensor part = out.select(0, g);
    if (group.size() == 0) {
      part.zero_();
    } else {
      part.copy_(
          scaled_mm(columns_of_group(a, g, group), columns_of_group(b, g, group), dense(options)));
    }
    ++g;
  }
  return out;
}

void zero_rows_past(const at::Tensor& out, const at::Tensor& offs) {
  if (out.is_cpu()) {
    const std::int64_t last = offs.const_data_ptr<std::int32_t>()[offs.size(0) - 1];
    out.narrow(0, last, out.size(0) - last).zero_();
    return;
  }
  const at::Tensor row = at::arange(out.size(0), offs.options());
  out.masked_fill_(row.ge(offs.select(0, -1)).unsqueeze(1), 0);
}

void zero_empty_groups(const at::Tensor& out, const at::Tensor& offs_transposed) {
  const at::Tensor begin = at::constant_pad_nd(offs_transposed, {1, -1});  // the ends before
  out.masked_fill_(offs_transposed.eq(begin).view({-1, 1, 1}), 0);
}

}  // namespace octavo
