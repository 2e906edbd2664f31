#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "octavo/gemm/high_precision_mm.h"
#include "octavo/kernels/gpu/cross_entropy.h"
#include "octavo/ops/gpu_arguments.h"
#include "octavo/ops/linear_cross_entropy_ops.h"
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
  const at::Tensor dw =
      empty_on(x.device(), need_dw ? w.sizes() : at::IntArrayRef({0}), w.scalar_type());
  auto [loss, dx] = linear_cross_entropy_cuda({.x = x,
                                               .w = w,
                                               .targets = targets,
                                               .chunk_bytes = chunk_bytes,
                                               .need_dx = need_dx,
                                               .dw = need_dw ? dw : at::Tensor()});
  return {loss, dx, dw};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> linear_cross_entropy_cuda(const LinearCrossEntropyArgs& args) {
  const auto& [x, w, targets, chunk_bytes, gradient, need_dx, given_dw, adds_to_dw] = args;
  TORCH_CHECK(is_gpu_dtype(x.scalar_type()), "linear_cross_entropy: expected x in float32, ",
              "bfloat16 or float16, got ", x.scalar_type(), "; convert it first");
  const c10::cuda::CUDAGuard guard(x.device());
  const std::int64_t k = w.size(1), vocabulary = w.size(0);
  const at::Tensor x_MK = x.reshape({targets.numel(), k});
  const at::Tensor targets_M = targets.contiguous().view({-1});
  const std::int64_t m = x_MK.size(0);
  const at::Tensor losses = empty_on(x.device(), {m}, at::kFloat);
  const at::Tensor dx = empty_on(
      x.device(), need_dx ? at::IntArrayRef({m, k}) : at::IntArrayRef({0}), x.scalar_type());
  at::Tensor dw = given_dw;
  if (dw.defined() && m == 0 && !adds_to_dw) dw.zero_();
  const std::int64_t chunk =
      tokens_of(chunk_bytes, std::max<std::int64_t>(vocabulary * x.element_size(), 1));
  for (std::int64_t begin = 0; begin < m; begin += chunk) {
    const std::int64_t tokens = std::min(chunk, m - begin);
    const at::Tensor x_chunk = x_MK.narrow(0, begin, tokens);
    const at::Tensor logits = high_precision_mm(x_chunk, w);
    gpu::cross_entropy({.logits = logits.data_ptr(),
                        .dtype = gpu_dtype(logits),
                        .target = targets_M.const_data_ptr<std::int64_t>() + begin,
                        .rows = tokens,
                        .columns = vocabulary,
                        .gradient_scale = static_cast<float>(gradient) / static_cast<float>(m),
                        .writes_gradient = need_dx || dw.defined(),
                        .loss = losses.mutable_data_ptr<float>() + begin},
                       c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (need_dx) high_precision_mm(logits, w.t(), {.into = dx.narrow(0, begin, tokens)});
    if (dw.defined()) {
      high_precision_mm(logits.t(), x_chunk.t(), {.into = dw, .adds = begin > 0 || adds_to_dw});
    }
  }
  return {losses.mean(), need_dx ? dx.view(x.sizes()) : dx};
}

TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("linear_cross_entropy_forward", &linear_cross_entropy_forward_cuda);
}

}  // namespace octavo::ops
