#include "octavo/gemm/emulated.h"

#include <ATen/Functions.h>

#include "octavo/gemm/full_precision.h"
#include "octavo/kernels/counter.h"

namespace octavo {
namespace {

// Scales (R, C/block) spread over the matrix.
at::Tensor spread(const ScaledTensor& matrix) {
  const Granularity& blocks = matrix.granularity;
  at::Tensor scale = matrix.scale.to(at::kFloat);
  if (blocks.block_rows > 1) {
    scale = scale.repeat_interleave(blocks.block_rows, 0).narrow(0, 0, matrix.rows());
  }
  if (blocks.block_columns > 1) {
    scale = scale.repeat_interleave(blocks.block_columns, 1).narrow(1, 0, matrix.columns());
  }
  return scale;
}

// (R, C) in `dtype`, the scales folded in.
at::Tensor dequantized(const ScaledTensor& matrix, at::ScalarType dtype) {
  ++kernels::counters().decode;
  return matrix.data.to(at::kFloat).mul_(spread(matrix)).to(dtype);
}

at::Tensor decoded(const ScaledTensor& matrix) {
  ++kernels::counters().decode;
  return matrix.data.to(at::kBFloat16);
}

}  // namespace

at::Tensor scaled_mm_emulated(const ScaledTensor& a, const ScaledTensor& b,
                              const MatmulOptions& options) {
  const bool scale_after = a.granularity.block_columns == 0 && b.granularity.block_columns == 0;
  at::Tensor out;
  if (scale_after) {
    out = at::mm(decoded(a), decoded(b).t(), at::kFloat);
    out.mul_(a.scale).mul_(b.scale.t());
  } else if (a.granularity.mx) {
    out = at::mm(dequantized(a, at::kBFloat16), dequantized(b, at::kBFloat16).t(), at::kFloat);
  } else {
    const FullPrecisionGuard precision(at::Float32Backend::CUDA);
    out = at::mm(dequantized(a, at::kFloat), dequantized(b, at::kFloat).t());
  }
  if (options.bias) out.add_(*options.bias);
  if (options.accumulate_into) return options.accumulate_into->add_(out);
  return out.to(options.out_dtype);
}

}  // namespace octavo
