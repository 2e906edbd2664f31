#include <ATen/Functions.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <utility>

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

/// The counter tiles are handed out by: zero now, and zero again after the product. Products on one
/// stream follow each other, so a stream has one for good and nobody clears it. A graph's products
/// may run beside the stream's they were captured on: they get their own, cleared by the graph.
at::Tensor tile_counter(const c10::cuda::CUDAStream& stream) {
  const auto zero = [&] {
    return at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(stream.device()));
  };
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) {
    return zero();
  }
  using Key = std::pair<c10::DeviceIndex, c10::StreamId>;
  static std::mutex mutex;
  // Never freed: the CUDA context may be gone when static objects are.
  static auto& counters = *new std::map<Key, at::Tensor>;
  const std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& counter = counters[{stream.device_index(), stream.id()}];
  if (!counter.defined()) counter = zero();
  return counter;
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
  const auto stream = c10::cuda::getCurrentCUDAStream(in.a.device().index());
  const at::Tensor a = in.a.contiguous(), b = in.b.contiguous(), counter = tile_counter(stream),
                   a_scale = in.blocks ? in.a_scale : in.a_scale.contiguous(),
                   b_scale = in.blocks ? in.b_scale : in.b_scale.contiguous();
  const at::Tensor out = empty_on(a.device(), {a.size(0), b.size(1)}, at::kBFloat16);
  gpu::GroupedGemmRowsArgs args{.a = data_of(a),
                                .b = data_of(b),
                                .a_scale = a_scale.const_data_ptr<float>(),
                                .b_scale = b_scale.const_data_ptr<float>(),
                                .offs = in.offs.const_data_ptr<std::int32_t>(),
                                .out = out.data_ptr(),
                                .M = a.size(0),
                                .N = b.size(1),
                                .K = a.size(1),
                                .E = static_cast<int>(b.size(0)),
                                .accumulation = accumulation_of(in),
                                .counter = counter.mutable_data_ptr<std::int32_t>()};
  if (in.blocks) {
    args.scaling = gpu::Scaling::kBlocks;
    args.a_block = a_scale.stride(1);
    args.b_group = b_scale.stride(0), args.b_row = b_scale.stride(1);
  }
  check_launched(gpu::grouped_gemm_rows(args, stream.stream()));
  return out;
}

at::Tensor grouped_gemm_k_cuda(const NativeOperands& in, const at::Tensor& accumulate_into) {
  const c10::cuda::CUDAGuard guard(in.a.device());
  const auto stream = c10::cuda::getCurrentCUDAStream(in.a.device().index());
  const at::Tensor a = in.a.contiguous(), b = in.b.contiguous(), counter = tile_counter(stream),
                   a_scale = in.blocks ? in.a_scale : in.a_scale.contiguous(),
                   b_scale = in.blocks ? in.b_scale : in.b_scale.contiguous();
  const std::int64_t experts = in.offs.size(0);
  const at::Tensor out = accumulate_into.defined()
                             ? accumulate_into
                             : empty_on(a.device(), {experts, a.size(0), b.size(0)}, at::kBFloat16);
  gpu::GroupedGemmKArgs args{.a = data_of(a),
                             .b = data_of(b),
                             .a_scale = a_scale.const_data_ptr<float>(),
                             .b_scale = b_scale.const_data_ptr<float>(),
                             .offs = in.offs.const_data_ptr<std::int32_t>(),
                             .out = out.data_ptr(),
                             .N = a.size(0),
                             .K = b.size(0),
                             .Mt = a.size(1),
                             .E = static_cast<int>(experts),
                             .accumulation = accumulation_of(in),
                             .accumulate = accumulate_into.defined(),
                             .counter = counter.mutable_data_ptr<std::int32_t>()};
  if (in.blocks) {
    args.scaling = gpu::Scaling::kBlocks;
    args.a_block = a_scale.stride(1), args.b_block = b_scale.stride(1);
  }
  check_launched(gpu::grouped_gemm_k(args, stream.stream()));
  return out;
}

}  // namespace octavo
