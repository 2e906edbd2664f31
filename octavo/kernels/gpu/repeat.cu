#include "octavo/kernels/gpu/repeat.h"

#include "octavo/kernels/gpu/launch.h"

namespace octavo::gpu {
namespace {

constexpr unsigned kRepeatThreads = 256;

__global__ void __launch_bounds__(kRepeatThreads)
    repeat_kernel(const float* value, float* out, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRepeatThreads + threadIdx.x;
  if (i < count) out[i] = *value;
}

}  // namespace

void repeat(const float* value, float* out, std::int64_t count, Stream stream) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(count, kRepeatThreads));
  repeat_kernel<<<blocks, kRepeatThreads, 0, static_cast<NativeStream>(stream)>>>(value, out,
                                                                                  count);
}

}  // namespace octavo::gpu
