#include "octavo/nn/fill_normal.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#if OCTAVO_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "octavo/kernels/gpu/normal.h"
#endif

#include "octavo/kernels/cpu/normal.h"

namespace octavo::nn {
namespace {

// FNV-1a, 64 bits (Fowler, Noll, Vo).
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace

void fill_normal(const at::Tensor& tensor, double deviation, std::uint64_t seed,
                 std::string_view name) {
  c10::NoGradGuard no_grad;
  TORCH_CHECK(tensor.is_contiguous(), "fill_normal: ", name, ": expected a contiguous tensor, got ",
              "strides ", tensor.strides(), "; fill its contiguous() and copy");
  if (tensor.is_meta() || tensor.numel() == 0) return;
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    const at::Tensor values = at::empty(tensor.sizes(), tensor.options().dtype(at::kFloat));
    fill_normal(values, deviation, seed, name);
    tensor.copy_(values);
    return;
  }
  const kernels::NormalSource source{
      .seed = seed, .stream = stream_of(name), .deviation = deviation};
#if OCTAVO_WITH_CUDA
  if (tensor.is_cuda()) {
    const c10::cuda::CUDAGuard guard(tensor.device());
    gpu::fill_normal(source, dtype == at::kFloat ? gpu::DType::kFP32 : gpu::DType::kBF16,
                     tensor.mutable_data_ptr(), tensor.numel(),
                     c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return;
  }
#endif
  TORCH_CHECK(tensor.is_cpu(), "fill_normal: ", name, ": expected a tensor on the CPU or a GPU ",
              "this build knows, got ", tensor.device(), "; move the model to one of them");
  constexpr std::int64_t kPerTask = 4096;  // about 100 us
  at::parallel_for(0, tensor.numel(), kPerTask, [&](std::int64_t begin, std::int64_t end) {
    kernels::fill_normal(
        source,
        dtype == at::kFloat ? kernels::HighPrecision::kFloat32 : kernels::HighPrecision::kBFloat16,
        tensor.mutable_data_ptr(), begin, end);
  });
}

}  // namespace octavo::nn
