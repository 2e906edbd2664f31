#include <ATen/Functions.h>

#include "octavo/gemm/grouped_backends.h"
#include "octavo/gemm/pad.h"
#include "octavo/kernels/counter.h"

namespace octavo {
namespace {

// Scales spread over the last two dimensions of data.
at::Tensor spread_scales(const ScaledTensor& matrix) {
  const Granularity& blocks = matrix.granularity;
  at::Tensor scale = matrix.scale.to(at::kFloat);
  if (blocks.block_rows > 1) {
    scale = scale.repeat_interleave(blocks.block_rows, -2).narrow(-2, 0, matrix.rows());
  }
  if (blocks.block_columns > 1) {
    scale = scale.repeat_interleave(blocks.block_columns, -1).narrow(-1, 0, matrix.columns());
  }
  return scale;
}

at::Tensor values(const ScaledTensor& matrix) {
  return matrix.data.to(at::kFloat).mul_(spread_scales(matrix));
}

// What at::_grouped_mm wants: the last dimension a multiple of 16 bytes.
at::Tensor aligned_columns(const at::Tensor& bf16) {
  const std::int64_t columns = bf16.size(-1), padded = round_up(columns, 8);
  return padded == columns ? bf16 : at::constant_pad_nd(bf16, {0, padded - columns});
}

struct Halves {
  at::Tensor high, low;
};

Halves halves(const at::Tensor& value) {
  const at::Tensor high = value.to(at::kBFloat16);
  return {high, value.sub(high).to(at::kBFloat16)};
}

// fp32 of the bf16 product by groups of rows, (M, K) . (E, N, K)^T.
at::Tensor by_rows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& offs) {
  return at::_grouped_mm(aligned_columns(a), aligned_columns(b).transpose(1, 2), offs)
      .to(at::kFloat);
}

// fp32 of the bf16 product by groups of columns, (N, Mt) . (K, Mt)^T; Mt is a multiple of 16.
at::Tensor by_columns(const at::Tensor& a, const at::Tensor& b, const at::Tensor& offs) {
  return at::_grouped_mm(a, b.t(), offs).to(at::kFloat);
}

}  // namespace

at::Tensor grouped_mm_emulated(const ScaledTensor& a, const ScaledTensor& b, const at::Tensor& offs,
                               const GroupedMatmulOptions& options) {
  kernels::counters().decode += 2;
  at::Tensor out;
  if (a.granularity.mx) {
    out = by_rows(values(a).to(at::kBFloat16), values(b).to(at::kBFloat16), offs);
  } else if (a.granularity.block_columns != 0) {
    const Halves x = halves(values(a)), w = halves(values(b));
    // One product with three times the columns: xh.wh + xh.wl + xl.wh, rounded once.
    out = by_rows(at::cat({x.high, x.high, x.low}, -1), at::cat({w.high, w.low, w.high}, -1), offs);
  } else {
    out = by_rows(a.data.to(at::kBFloat16), b.data.to(at::kBFloat16), offs);
    // The group of each row, E for those past the last offset.
    const at::Tensor group = at::bucketize(at::arange(a.rows(), offs.options()), offs,
                                           /*out_int32=*/true, /*right=*/true)
                                 .clamp_max_(offs.size(0) - 1);
    out.mul_(a.scale).mul_(b.scale.squeeze(-1).index_select(0, group));
  }
  zero_rows_past(out, offs);
  return out.to(options.out_dtype);
}

at::Tensor grouped_mm_k_emulated(const ScaledTensor& a, const ScaledTensor& b,
                                 const at::Tensor& offs_transposed,
                                 const GroupedMatmulOptions& options) {
  kernels::counters().decode += 2;
  at::Tensor out;
  if (a.granularity.mx) {
    out = by_columns(values(a).to(at::kBFloat16), values(b).to(at::kBFloat16), offs_transposed);
  } else if (a.granularity.block_columns != 0) {
    const Halves y = halves(values(a)), x = halves(values(b));
    out = by_columns(y.high, x.high, offs_transposed)
              .add_(by_columns(y.high, x.low, offs_transposed))
              .add_(by_columns(y.low, x.high, offs_transposed));
  } else {
    out = by_columns(a.data.to(at::kBFloat16), b.data.to(at::kBFloat16), offs_transposed)
              .mul_(a.scale.unsqueeze(2))
              .mul_(b.scale.unsqueeze(1));
  }
  zero_empty_groups(out, offs_transposed);
  return out.to(options.out_dtype);
}

}  // namespace octavo
