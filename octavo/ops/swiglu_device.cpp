#include "octavo/ops/swiglu_device.h"

#include <ATen/Functions.h>

namespace octavo::ops {
namespace {

// Contiguous too: LibTorch's silu of a strided tensor has other last bits than its vectorised one.
at::Tensor as_float(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

}  // namespace

// The CPU's by LibTorch's vectorised operations, in fp32; a GPU's where there are no kernels of
// ours too.
void swiglu_rows(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& h,
                 [[maybe_unused]] const Amaxes* h_amaxes) {
#if OCTAVO_WITH_CUDA
  if (gate.is_cuda()) return swiglu_rows_cuda(gate, up, h, h_amaxes);
#endif
  h.copy_(at::silu(as_float(gate)).mul_(up));
}

void swiglu_backward_rows(const at::Tensor& dh, const at::Tensor& gate, const at::Tensor& up,
                          const at::Tensor& dgate, const at::Tensor& dup,
                          [[maybe_unused]] const Amaxes* dgate_amaxes,
                          [[maybe_unused]] const Amaxes* dup_amaxes) {
#if OCTAVO_WITH_CUDA
  if (gate.is_cuda()) {
    return swiglu_backward_rows_cuda(dh, gate, up, dgate, dup, dgate_amaxes, dup_amaxes);
  }
#endif
  const at::Tensor gate32 = as_float(gate), dh32 = as_float(dh);
  dup.copy_(at::silu(gate32).mul_(dh32));
  dgate.copy_(at::silu_backward(dh32.mul(up), gate32));
}

}  // namespace octavo::ops
