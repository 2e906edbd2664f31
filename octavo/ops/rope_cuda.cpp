#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "octavo/kernels/gpu/rope.h"
#include "octavo/ops/gpu_arguments.h"
#include "octavo/ops/rope.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {
namespace {

at::Tensor rope_cuda(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                     bool inverse) {
  check_rope(x, cosine, sine);
  const bool fp32_table = cosine.scalar_type() == at::kFloat && sine.scalar_type() == at::kFloat;
  if (!is_gpu_dtype(x.scalar_type()) || x.size(3) % 16 != 0 || !fp32_table) {
    return rope_composite(x, cosine, sine, inverse);
  }
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor x_dense = aligned(x), cosine_dense = aligned(cosine), sine_dense = aligned(sine);
  const at::Tensor y = empty_on(x.device(), x.sizes(), x.scalar_type());
  gpu::rope({.x = x_dense.const_data_ptr(),
             .y = y.data_ptr(),
             .dtype = gpu_dtype(x),
             .batch = x.size(0),
             .sequence = x.size(1),
             .heads = x.size(2),
             .features = x.size(3),
             .cosine = cosine_dense.const_data_ptr<float>(),
             .sine = sine_dense.const_data_ptr<float>(),
             .inverse = inverse},
            c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CUDA, m) { m.impl("rope", &rope_cuda); }

}  // namespace octavo::ops
