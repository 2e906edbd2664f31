#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "octavo/kernels/gpu/permute.h"
#include "octavo/ops/gpu_arguments.h"
#include "octavo/ops/permute_device.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {
namespace {

gpu::PermuteArgs permute_args(const at::Tensor& x, const Moves& moves) {
  return {.tokens = moves.row.size(0),
          .copies = moves.row.size(1),
          .features = x.size(1),
          .dtype = gpu_dtype(x),
          .choice = moves.choice.const_data_ptr<std::int64_t>(),
          .row = moves.row.const_data_ptr<std::int64_t>(),
          .weights = moves.weights.defined() ? moves.weights.const_data_ptr<float>() : nullptr};
}

gpu::Stream stream_of(const at::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

}  // namespace

at::Tensor permuted_cuda(const at::Tensor& x, const Moves& moves) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor out = empty_on(x.device(), {moves.choice.size(0), x.size(1)}, x.scalar_type());
  gpu::PermuteArgs args = permute_args(x, moves);
  args.tokens_in = x.const_data_ptr();
  args.rows_out = out.data_ptr();
  gpu::permute_rows(args, stream_of(x));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor unpermuted_cuda(const at::Tensor& x, const Moves& moves) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor out = empty_on(x.device(), {moves.row.size(0), x.size(1)}, x.scalar_type());
  gpu::PermuteArgs args = permute_args(x, moves);
  args.rows_in = x.const_data_ptr();
  args.tokens_out = out.data_ptr();
  gpu::unpermute_rows(args, stream_of(x));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor weight_gradient_cuda(const at::Tensor& dy, const at::Tensor& x, const Moves& moves) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor out = empty_on(x.device(), moves.row.sizes(), at::kFloat);
  gpu::PermuteArgs args = permute_args(x, moves);
  args.tokens_in = dy.const_data_ptr();
  args.rows_in = x.const_data_ptr();
  args.dweights = out.mutable_data_ptr<float>();
  gpu::unpermute_weight_gradient(args, stream_of(x));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

}  // namespace octavo::ops
