#include "octavo/gemm/high_precision_mm.h"

#include <ATen/Functions.h>

#include "octavo/quantize/allocate.h"

namespace octavo {

at::Tensor high_precision_mm(const at::Tensor& a, const at::Tensor& b, const MmOut& out) {
  at::Tensor into = out.into;
#if OCTAVO_WITH_CUDA
  if (a.is_cuda() && a.dim() == 2 && b.dim() == 2) {
    if (!into.defined()) into = empty_on(a.device(), {a.size(0), b.size(0)}, a.scalar_type());
    if (high_precision_mm_cublaslt(a, b, into, out.adds)) return into;
  }
#endif
  if (!into.defined()) return at::mm(a, b.t());
  return out.adds ? into.addmm_(a, b.t()) : at::mm_out(into, a, b.t());
}

}  // namespace octavo
