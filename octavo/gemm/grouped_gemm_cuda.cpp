#include <ATen/Functions.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "octavo/gemm/grouped_backends.h"
#include "octavo/kernels/gpu/grouped_gemm.h"
#include "octavo/quantize/allocate.h"

namespace octavo {
namespace {

const std::uint8_t* data_of(const at::Tensor& fp8) {
  return static_cast<const std::uint8_t*>(fp8.const_data_ptr());
}

gpu::Accumulation accumulation_of(const NativeOperands& in) {
  return in.fast_accumulation ? gpu::Accumulation::kFast : gpu::Accumulation::kFull;
}

void check_launched(const char* wrong) {
  TORCH_CHECK(wrong == nullptr,
              "backend: octavo cannot multiply this: ", wrong == nullptr ? "" : wrong,
              "; use backend=emulated");
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

at::Tensor grouped_gemm_rows_cuda(const NativeOperands& in) {
  const c10::cuda::CUDAGuard guard(in.a.device());
  const at::Tensor a = in.a.contiguous(), b = in.b.contiguous(), a_scale = in.a_scale.contiguous(),
                   b_scale = in.b_scale.contiguous();
  const at::Tensor out = empty_on(a.device(), {a.size(0), b.size(1)}, at::kBFloat16);
  check_launched(
      gpu::grouped_gemm_rows({.a = data_of(a),
                              .b = data_of(b),
                              .a_scale = a_scale.const_data_ptr<float>(),
                              .b_scale = b_scale.const_data_ptr<float>(),
                              .offs = in.offs.const_data_ptr<std::int32_t>(),
                              .out = out.data_ptr(),
                              .M = a.size(0),
                              .N = b.size(1),
                              .K = a.size(1),
                              .E = static_cast<int>(b.size(0)),
                              .accumulation = accumulation_of(in)},
                             c10::cuda::getCurrentCUDAStream(a.device().index()).stream()));
  return out;
}

at::Tensor grouped_gemm_k_cuda(const NativeOperands& in) {
  const c10::cuda::CUDAGuard guard(in.a.device());
  const at::Tensor a = in.a.contiguous(), b = in.b.contiguous(), a_scale = in.a_scale.contiguous(),
                   b_scale = in.b_scale.contiguous();
  const std::int64_t experts = in.offs.size(0);
  const at::Tensor out = empty_on(a.device(), {experts, a.size(0), b.size(0)}, at::kBFloat16);
  check_launched(gpu::grouped_gemm_k({.a = data_of(a),
                                      .b = data_of(b),
                                      .a_scale = a_scale.const_data_ptr<float>(),
                                      .b_scale = b_scale.const_data_ptr<float>(),
                                      .offs = in.offs.const_data_ptr<std::int32_t>(),
                                      .out = out.data_ptr(),
                                      .N = a.size(0),
                                      .K = b.size(0),
                                      .Mt = a.size(1),
                                      .E = static_cast<int>(experts),
                                      .accumulation = accumulation_of(in)},
                                     c10::cuda::getCurrentCUDAStream(a.device().index()).stream()));
  return out;
}

}  // namespace octavo
