#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "octavo/kernels/gpu/swiglu.h"
#include "octavo/ops/gpu_arguments.h"
#include "octavo/ops/swiglu_device.h"

namespace octavo::ops {
namespace {

gpu::RowsOf rows_on_gpu(const at::Tensor& x) { return {x.data_ptr(), x.stride(0)}; }

gpu::SwigluArgs swiglu_args(const at::Tensor& gate, const at::Tensor& up) {
  return {.rows = gate.size(0),
          .columns = gate.size(1),
          .dtype = gpu_dtype(gate),
          .gate = rows_on_gpu(gate),
          .up = rows_on_gpu(up)};
}

}  // namespace

void swiglu_rows_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& h,
                      const Amaxes* h_amaxes) {
  const c10::cuda::CUDAGuard guard(gate.device());
  gpu::SwigluArgs args = swiglu_args(gate, up);
  args.h = rows_on_gpu(h);
  args.h_amax = written_amax(h_amaxes);
  gpu::swiglu(args, c10::cuda::getCurrentCUDAStream(gate.device().index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void swiglu_backward_rows_cuda(const at::Tensor& dh, const at::Tensor& gate, const at::Tensor& up,
                               const at::Tensor& dgate, const at::Tensor& dup,
                               const Amaxes* dgate_amaxes, const Amaxes* dup_amaxes) {
  const c10::cuda::CUDAGuard guard(gate.device());
  gpu::SwigluArgs args = swiglu_args(gate, up);
  args.dh = rows_on_gpu(dh);
  args.dgate = rows_on_gpu(dgate);
  args.dup = rows_on_gpu(dup);
  args.dgate_amax = written_amax(dgate_amaxes);
  args.dup_amax = written_amax(dup_amaxes);
  gpu::swiglu_backward(args, c10::cuda::getCurrentCUDAStream(gate.device().index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace octavo::ops
