#include <ATen/Functions.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "octavo/kernels/gpu/cross_entropy.h"
#include "octavo/ops/gpu_arguments.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {
namespace {

// Tokens whose logits fill at most `bytes`; whole multiples of 128, the products' tiles, where
// there are so many.
std::int64_t tokens_of(std::int64_t bytes, std::int64_t bytes_per_token) {
  const std::int64_t tokens = std::max<std::int64_t>(bytes / bytes_per_token, 1);
  return tokens >= 128 ? tokens / 128 * 128 : tokens;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward_cuda(
    const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets, std::int64_t chunk_bytes,
    bool need_dx, bool need_dw) {
  TORCH_CHECK(is_gpu_dtype(x.scalar_type()), "linear_cross_entropy: expected x in float32, ",
              "bfloat16 or float16, got ", x.scalar_type(), "; convert it first");
  const c10::cuda::CUDAGuard guard(x.device());
  const std::int64_t k = w.size(1), vocabulary = w.size(0);
  const at::Tensor x_MK = x.reshape({targets.numel(), k});
  const at::Tensor targets_M = targets.contiguous().view({-1});
  const std::int64_t m = x_MK.size(0);
  const at::Tensor losses = empty_on(x.device(), {m}, at::kFloat);
  at::Tensor dx = need_dx ? empty_on(x.device(), {m, k}, x.scalar_type())
                          : empty_on(x.device(), {0}, x.scalar_type());
  at::Tensor dw = need_dw && m == 0 ? at::zeros_like(w)
                  : need_dw         ? empty_on(x.device(), w.sizes(), w.scalar_type())
                                    : empty_on(x.device(), {0}, w.scalar_type());
  const std::int64_t chunk =
      tokens_of(chunk_bytes, std::max<std::int64_t>(vocabulary * x.element_size(), 1));
  for (std::int64_t begin = 0; begin < m; begin += chunk) {
    const std::int64_t tokens = std::min(chunk, m - begin);
    const at::Tensor x_chunk = x_MK.narrow(0, begin, tokens);
    const at::Tensor logits = at::mm(x_chunk, w.t());
    gpu::cross_entropy({.logits = logits.data_ptr(),
                        .dtype = gpu_dtype(logits),
                        .target = targets_M.const_data_ptr<std::int64_t>() + begin,
                        .rows = tokens,
                        .columns = vocabulary,
                        .gradient_scale = 1.0f / static_cast<float>(m),
                        .writes_gradient = need_dx || need_dw,
                        .loss = losses.mutable_data_ptr<float>() + begin},
                       c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (need_dx) {
      at::Tensor dx_chunk = dx.narrow(0, begin, tokens);
      at::mm_out(dx_chunk, logits, w);
    }
    if (need_dw && begin == 0) {
      at::mm_out(dw, logits.t(), x_chunk);
    } else if (need_dw) {
      dw.addmm_(logits.t(), x_chunk);
    }
  }
  return {losses.mean(), need_dx ? dx.view(x.sizes()) : dx, dw};
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("linear_cross_entropy_forward", &linear_cross_entropy_forward_cuda);
}

}  // namespace octavo::ops
