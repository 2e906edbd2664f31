#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <vector>

#include "octavo/kernels/gpu/rope.h"
#include "octavo/ops/gpu_arguments.h"
#include "octavo/ops/rope.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {
namespace {

// Whether the kernel takes it; else LibTorch's own operations do.
bool has_kernel(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  return is_gpu_dtype(x.scalar_type()) && x.size(3) % 16 == 0 &&
         cosine.scalar_type() == at::kFloat && sine.scalar_type() == at::kFloat;
}

// One launch for tensors of one B, T, P and dtype.
void launch_rope(at::ArrayRef<at::Tensor> xs, at::ArrayRef<at::Tensor> ys, const at::Tensor& cosine,
                 const at::Tensor& sine, bool inverse) {
  const at::Tensor& x = xs[0];
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor cosine_dense = aligned(cosine), sine_dense = aligned(sine);
  gpu::RopeArgs args{.tensors = {},
                     .dtype = gpu_dtype(x),
                     .batch = x.size(0),
                     .sequence = x.size(1),
                     .features = x.size(3),
                     .cosine = cosine_dense.const_data_ptr<float>(),
                     .sine = sine_dense.const_data_ptr<float>(),
                     .inverse = inverse};
  std::vector<at::Tensor> dense;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    dense.push_back(aligned(xs[i]));
    args.tensors[i] = {
        .x = dense[i].const_data_ptr(), .y = ys[i].mutable_data_ptr(), .heads = xs[i].size(2)};
  }
  gpu::rope(args, c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor rope_cuda(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                     bool inverse) {
  check_rope(x, cosine, sine);
  if (!has_kernel(x, cosine, sine)) return rope_composite(x, cosine, sine, inverse);
  const at::Tensor y = empty_on(x.device(), x.sizes(), x.scalar_type());
  launch_rope({x}, {y}, cosine, sine, inverse);
  return y;
}

std::tuple<at::Tensor, at::Tensor> rope_query_key_cuda(const at::Tensor& q, const at::Tensor& k,
                                                       const at::Tensor& cosine,
                                                       const at::Tensor& sine, bool inverse) {
  check_rope_query_key(q, k, cosine, sine);
  if (!has_kernel(q, cosine, sine)) return rope_query_key_composite(q, k, cosine, sine, inverse);
  const at::Tensor y_q = empty_on(q.device(), q.sizes(), q.scalar_type());
  const at::Tensor y_k = empty_on(k.device(), k.sizes(), k.scalar_type());
  launch_rope({q, k}, {y_q, y_k}, cosine, sine, inverse);
  return {y_q, y_k};
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("rope", &rope_cuda);
  m.impl("rope_query_key", &rope_query_key_cuda);
}

}  // namespace octavo::ops
