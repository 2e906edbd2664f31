#include "octavo/ops/transpose_bytes.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {
namespace {

void check_bytes(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "x: expected a matrix (R, C), got ", x.dim(),
              " dimensions; view it as one");
  TORCH_CHECK(x.element_size() == 1, "x: expected elements of one byte, got ", x.scalar_type(),
              "; use x.t().contiguous()");
}

at::Tensor call_transpose_bytes(const at::Tensor& x) {
  static const auto op = find_operator<decltype(call_transpose_bytes)>("octavo::transpose_bytes");
  return op.call(x);
}

at::Tensor transpose_bytes_meta(const at::Tensor& x) {
  check_bytes(x);
  return at::empty_symint({x.sym_size(1), x.sym_size(0)}, x.options());
}

at::Tensor transpose_bytes_autograd(const at::Tensor& x) {
  refuse_tangents("transpose_bytes", {x});
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor result = call_transpose_bytes(x);
  return requires_derivative({x}) ? without_derivative("transpose_bytes", result) : result;
}

}  // namespace

at::Tensor transpose_bytes(const at::Tensor& x) {
  check_bytes(x);
#if OCTAVO_WITH_CUDA
  if (x.is_cuda()) return transpose_bytes_cuda(x);
#endif
  at::Tensor out = empty_on(x.device(), {x.size(1), x.size(0)}, x.scalar_type());
  out.view(at::kByte).copy_(x.view(at::kByte).t());
  return out;
}

TORCH_LIBRARY_IMPL(octavo, CPU, m) { m.impl("transpose_bytes", &transpose_bytes); }
TORCH_LIBRARY_IMPL(octavo, CUDA, m) { m.impl("transpose_bytes", &transpose_bytes); }
TORCH_LIBRARY_IMPL(octavo, Meta, m) { m.impl("transpose_bytes", &transpose_bytes_meta); }
TORCH_LIBRARY_IMPL(octavo, Autograd, m) { m.impl("transpose_bytes", &transpose_bytes_autograd); }
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("transpose_bytes", &below_autocast<&call_transpose_bytes>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("transpose_bytes", &below_autocast<&call_transpose_bytes>::call);
}

}  // namespace octavo::ops
