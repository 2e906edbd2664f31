#include "octavo/quantize/dequantize.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/decode.h"
#include "octavo/quantize/check.h"
#include "octavo/quantize/split.h"

namespace octavo {
namespace {

using kernels::DecodeArgs;
using kernels::ScaleKind;

at::Tensor decode(const ScaledTensor& matrix, ScaleKind scale_kind) {
  TORCH_CHECK(matrix.data.device().is_cpu(), "matrix.data: expected a CPU tensor, got device ",
              matrix.data.device(), "; move the ScaledTensor's data and scale to the CPU first");
  const std::int64_t rows = matrix.rows(), columns = matrix.columns();
  at::Tensor out = at::empty({rows, columns}, matrix.data.options().dtype(at::kFloat));
  if (out.numel() == 0) return out;
  ++kernels::counters().decode;
  DecodeArgs args{
      .data = static_cast<const std::uint8_t*>(matrix.data.const_data_ptr()),
      .row_stride = matrix.data.stride(0),
      .columns = columns,
      .format = matrix.format(),
      .out = out.mutable_data_ptr<float>(),
      .out_row_stride = columns,
  };
  if (scale_kind != ScaleKind::kNone) {
    const Granularity& blocks = matrix.granularity;
    args.scale_kind = scale_kind;
    args.scale = matrix.scale.const_data_ptr();
    args.scale_row_stride = matrix.scale.stride(0);
    args.scale_column_stride = matrix.scale.stride(1);
    args.block_rows = blocks.block_rows == 0 ? rows : blocks.block_rows;
    args.block_columns = blocks.block_columns == 0 ? columns : blocks.block_columns;
  }
  at::parallel_for(0, rows, grain(columns), [&](std::int64_t begin, std::int64_t end) {
    kernels::decode_rows(args, begin, end);
  });
  return out;
}

}  // namespace

at::Tensor decode_unscaled(const ScaledTensor& matrix) { return decode(matrix, ScaleKind::kNone); }

at::Tensor dequantize(const ScaledTensor& matrix) {
  if (matrix.data.defined() && matrix.data.dim() == 3) {
    check_expert_weights(matrix, "matrix");
    at::Tensor out = at::empty(matrix.logical_sizes, matrix.data.options().dtype(at::kFloat));
    for (std::int64_t e = 0; e < out.size(0); ++e) out[e].copy_(dequantize(expert(matrix, e)));
    return out;
  }
  check_scaled_tensor(matrix, "matrix");
  return decode(matrix, matrix.granularity.mx ? ScaleKind::kE8M0 : ScaleKind::kFloat);
}

}  // namespace octavo
