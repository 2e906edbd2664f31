#include "octavo/ops/bias_gradient.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/column_sum.h"

namespace octavo::ops {
namespace {

kernels::ConstMatrix matrix_of(const at::Tensor& dy) {
  kernels::HighPrecision type = kernels::HighPrecision::kFloat32;
  if (dy.scalar_type() == at::kBFloat16) type = kernels::HighPrecision::kBFloat16;
  if (dy.scalar_type() == at::kHalf) type = kernels::HighPrecision::kFloat16;
  return {dy.const_data_ptr(), type, dy.size(0), dy.size(1), dy.stride(0), dy.stride(1)};
}

}  // namespace

at::Tensor bias_gradient(const at::Tensor& dy, at::ScalarType dtype) {
  if (!dy.is_cpu()) return at::sum(dy, 0, /*keepdim=*/false, at::kFloat).to(dtype);
  const std::int64_t n = dy.size(1);
  at::Tensor sums = at::empty({n}, dy.options().dtype(at::kFloat));
  float* out = sums.mutable_data_ptr<float>();
  const kernels::ConstMatrix matrix = matrix_of(dy);
  ++kernels::counters().column_sum;
  at::parallel_for(0, n, /*grain_size=*/64, [&](std::int64_t begin, std::int64_t end) {
    kernels::cpu::column_sum(matrix, out, begin, end);
  });
  if (dtype == at::kFloat) return sums;
  // By hand: N elements, and a dispatcher copy here would look like a copy of an operand.
  at::Tensor rounded = at::empty({n}, dy.options().dtype(dtype));
  AT_DISPATCH_REDUCED_FLOATING_TYPES(dtype, "dbias", [&] {
    scalar_t* to = rounded.mutable_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<scalar_t>(out[i]);
  });
  return rounded;
}

}  // namespace octavo::ops
