#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "octavo/kernels/gpu/rms_norm.h"
#include "octavo/ops/gpu_arguments.h"
#include "octavo/ops/operands.h"
#include "octavo/ops/rms_norm_ops.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {
namespace {

bool takes_rms_norm(const at::Tensor& x, const at::Tensor& w) {
  return is_gpu_dtype(x.scalar_type()) && is_gpu_dtype(w.scalar_type()) &&
         gpu::fits_rms_norm(w.size(0));
}

const void* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

// x and w are aligned(). y is undefined without with_y; its amaxes are found where not null.
RmsNormResult run_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                           const at::Tensor& w, double eps, bool with_y, const Amaxes* amaxes) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor residual_dense = residual ? aligned(*residual) : at::Tensor();
  const at::Tensor h = residual ? empty_on(x.device(), x.sizes(), x.scalar_type())
                                : empty_on(x.device(), {0}, x.scalar_type());
  at::Tensor y, partial;
  if (with_y) y = empty_on(x.device(), x.sizes(), x.scalar_type());
  const at::Tensor rstd = empty_on(x.device(), x.sizes().slice(0, x.dim() - 1), at::kFloat);
  gpu::RmsNormArgs args{.x = x.const_data_ptr(),
                        .residual = data_of(residual_dense),
                        .w = w.const_data_ptr(),
                        .dtype = gpu_dtype(x),
                        .w_dtype = gpu_dtype(w),
                        .rows = rstd.numel(),
                        .columns = w.size(0),
                        .eps = static_cast<float>(eps),
                        .h = residual ? h.data_ptr() : nullptr,
                        .y = with_y ? y.data_ptr() : nullptr,
                        .rstd = rstd.mutable_data_ptr<float>(),
                        .y_amax = written_amax(amaxes)};
  if (args.y_amax.column) {
    partial =
        empty_on(x.device(), {gpu::rms_norm_partials(args.rows, args.columns)}, x.scalar_type());
    args.partial = partial.data_ptr();
  }
  gpu::rms_norm(args, c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {h, y, rstd};
}

RmsNormResult rms_norm_forward_cuda(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                    const at::Tensor& w, double eps) {
  check_rms_norm(x, residual, w, eps);
  if (!takes_rms_norm(x, w)) return rms_norm_composite(x, residual, w, eps);
  return run_rms_norm(aligned(x), residual, aligned(w), eps, /*with_y=*/true, nullptr);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cuda(const at::Tensor& dy,
                                                          const std::optional<at::Tensor>& dh,
                                                          const at::Tensor& h, const at::Tensor& w,
                                                          const at::Tensor& rstd, bool need_dx,
                                                          bool need_dw) {
  if (!takes_rms_norm(h, w) || dy.scalar_type() != h.scalar_type() ||
      (dh && dh->scalar_type() != h.scalar_type())) {
    return rms_norm_backward_composite(dy, dh, h, w, rstd, need_dx, need_dw);
  }
  const c10::cuda::CUDAGuard guard(h.device());
  const at::Tensor dy_dense = aligned(dy), h_dense = aligned(h), w_dense = aligned(w);
  const at::Tensor dh_dense = dh ? aligned(*dh) : at::Tensor();
  const std::int64_t columns = w.size(0);
  const at::Tensor dx = empty_on(h.device(), h.sizes(), h.scalar_type());
  const at::Tensor partial = empty_on(h.device(), {gpu::kRmsNormBlocks, columns}, at::kFloat);
  const at::Tensor dw = empty_on(h.device(), {columns}, w.scalar_type());
  gpu::rms_norm_backward({.dy = dy_dense.const_data_ptr(),
                          .dh = data_of(dh_dense),
                          .h = h_dense.const_data_ptr(),
                          .w = w_dense.const_data_ptr(),
                          .rstd = rstd.const_data_ptr<float>(),
                          .dtype = gpu_dtype(h),
                          .w_dtype = gpu_dtype(w),
                          .rows = rstd.numel(),
                          .columns = columns,
                          .dx = dx.data_ptr(),
                          .partial = partial.mutable_data_ptr<float>(),
                          .dw = dw.data_ptr()},
                         c10::cuda::getCurrentCUDAStream(h.device().index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {dx, dw};
}

}  // namespace

RmsNormOperand rms_norm_operand_cuda(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                     const at::Tensor& w, double eps, const OperandSpec& spec,
                                     bool keep_y) {
  check_rms_norm(x, residual, w, eps);
  if (!takes_rms_norm(x, w)) {
    auto [h, y, rstd] = rms_norm_composite(x, residual, w, eps);
    return {.h = h, .rstd = rstd, .y = y, .operand = quantize_operand(as_matrix(y), spec)};
  }
  const at::Tensor x_dense = aligned(x), w_dense = aligned(w), x_MD = as_matrix(x_dense);
  const std::optional<Amaxes> found = amaxes_for(x_MD, spec);
  const Amaxes* const amaxes = found ? &*found : nullptr;
  const bool again = !keep_y && can_quantize_rms_norm({.h = x_MD, .rstd = {}, .w = w_dense}, spec);
  auto [h, y, rstd] = run_rms_norm(x_dense, residual, w_dense, eps, /*with_y=*/!again, amaxes);
  RmsNormOperand result{.h = h, .rstd = rstd, .y = y, .operand = {}};
  OperandSpec known = spec;
  if (amaxes) known.amax = *amaxes;
  result.operand =
      again ? quantize_rms_norm({.h = residual ? as_matrix(h) : x_MD, .rstd = rstd, .w = w_dense},
                                known)
            : quantize_operand(as_matrix(y), known);
  return result;
}

TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("rms_norm_forward", &rms_norm_forward_cuda);
  m.impl("rms_norm_backward", &rms_norm_backward_cuda);
}

}  // namespace octavo::ops
