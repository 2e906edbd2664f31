#include "octavo/kernels/gpu/normal.h"

#include "octavo/kernels/gpu/device_arithmetic.h"
#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/matrix.h"

namespace octavo::gpu {
namespace {

constexpr int kThreads = 256;

OCTAVO_DEVICE void store_value(float* to, float x) { *to = x; }
OCTAVO_DEVICE void store_value(std::uint16_t* to, float x) { *to = kernels::bfloat16_bits(x); }

// A thread makes the four values of one Philox block; neighbours' stores are neighbours.
template <class T>
__global__ void OCTAVO_LAUNCH_BOUNDS(kThreads, 1)
    normal_kernel(const kernels::NormalSource source, T* data, std::int64_t size) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       block * 4 < size; block += threads) {
    float value[4];
    kernels::normal_values<DeviceArithmetic>(source, static_cast<std::uint64_t>(block), value);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (block * 4 + i < size) store_value(data + block * 4 + i, value[i]);
    }
  }
}

}  // namespace

void fill_normal(const kernels::NormalSource& source, DType dtype, void* data, std::int64_t size,
                 Stream stream) {
  if (size == 0) return;
  const auto native = static_cast<NativeStream>(stream);
  const std::int64_t wanted = ceil_div(ceil_div(size, 4), kThreads);
  const unsigned blocks =
      static_cast<unsigned>(wanted < 8 * multiprocessors() ? wanted : 8 * multiprocessors());
  if (dtype == DType::kFP32) {
    normal_kernel<<<blocks, kThreads, 0, native>>>(source, static_cast<float*>(data), size);
  } else {
    normal_kernel<<<blocks, kThreads, 0, native>>>(source, static_cast<std::uint16_t*>(data), size);
  }
}

}  // namespace octavo::gpu
