#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "octavo/kernels/gpu/transpose.h"
#include "octavo/ops/transpose_bytes.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {

at::Tensor transpose_bytes_cuda(const at::Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  // The stride of an extent of 1 means nothing and can be anything.
  const at::Tensor from = x.size(1) <= 1 || x.stride(1) == 1 ? x : x.contiguous();
  const at::Tensor out = empty_on(x.device(), {x.size(1), x.size(0)}, x.scalar_type());
  gpu::transpose_bytes({.from = static_cast<const std::uint8_t*>(from.const_data_ptr()),
                        .to = static_cast<std::uint8_t*>(out.data_ptr()),
                        .rows = x.size(0),
                        .columns = x.size(1),
                        .row_stride = x.size(0) <= 1 ? x.size(1) : from.stride(0)},
                       c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

}  // namespace octavo::ops
