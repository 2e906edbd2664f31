// Every function of octavo/formats in a kernel, compared with the host on a GPU. The headers of
// octavo/device are host code that nvcc must accept.
//
// tests/formats/test_device_compile.py compiles this file; where there is a GPU the program also
// runs: nvcc -std=c++20 -I. tests/formats/device_formats.cu -o device_formats && ./device_formats

#include <cstdio>
#include <cstring>
#include <vector>

#include "octavo/device/architecture.h"
#include "octavo/device/native_products.h"
#include "octavo/device/peak_rates.h"
#include "octavo/formats/codec.h"
#include "octavo/formats/e8m0.h"
#include "octavo/formats/format.h"
#include "octavo/formats/scaling.h"
#include "octavo/formats/to_fnuz.h"

namespace {

/// All results for one fp32 bit pattern, one 32-bit word each.
constexpr int kWords = 4 * (2 + 2 + 1 + 2 + 4) + 4;

__host__ __device__ void evaluate(std::uint32_t pattern, std::uint32_t* out) {
  using namespace octavo;
  const float x = internal::float_of(pattern);
  const auto byte = static_cast<std::uint8_t>(pattern >> 24);
  int n = 0;
  // A run-time index into the table of limits, as a kernel with a format argument has it.
  for (int i = 0; i < 4; ++i) {
    const auto format = static_cast<Format>(i);
    out[n++] = encode(format, x, Overflow::kSaturate);
    out[n++] = encode(format, x, Overflow::kNonFinite);
    out[n++] = internal::bits_of(decode(format, byte));
    out[n++] = fnuz_byte_of_ocp(element_of(format), byte);
    const float amax = internal::float_of(pattern & 0x7FFFFFFFu);
    const float plain = inv_scale_of(amax, format, ScaleRounding::kNone);
    const float power = inv_scale_of(amax, format, ScaleRounding::kPowerOfTwo);
    out[n++] = quantize_element(0.75f * x, plain, format);
    // NaN payloads are not part of the contract.
    out[n++] = plain != plain ? 0 : internal::bits_of(scale_of(plain));
    out[n++] = power != power ? 0 : internal::bits_of(power);
    out[n++] = mx_code_of(amax, format, MxRounding::kFloor);
    out[n++] = mx_code_of(amax, format, MxRounding::kCeil);
    out[n++] = mx_code_of(amax, format, MxRounding::kEven);
    out[n++] = mx_code_of(amax, format, MxRounding::kRceil);
  }
  out[n++] = internal::bits_of(decode_e8m0(byte));
  out[n++] = internal::bits_of(inv_scale_e8m0(byte));
  out[n++] = encode_e8m0_nearest(x);
  out[n++] = x != x ? 0 : internal::bits_of(fnuz_scale_of_ocp(x));
}

// Steps of an odd number visit every exponent, sign and many mantissas.
__host__ __device__ std::uint32_t pattern_of(std::uint32_t index) { return index * 2654435761u; }

__global__ void evaluate_all(std::uint32_t* out, std::uint32_t count) {
  const std::uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) evaluate(pattern_of(index), out + static_cast<std::size_t>(index) * kWords);
}

}  // namespace

int main() {
  constexpr std::uint32_t kCount = 1u << 22;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kCount) * kWords * 4;
  std::uint32_t* device = nullptr;
  if (cudaMalloc(&device, kBytes) != cudaSuccess) return std::puts("no GPU"), 1;
  evaluate_all<<<kCount / 256, 256>>>(device, kCount);
  std::vector<std::uint32_t> got(kBytes / 4);
  const cudaError_t error = cudaMemcpy(got.data(), device, kBytes, cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) return std::puts(cudaGetErrorString(error)), 1;
  std::uint32_t expected[kWords];
  for (std::uint32_t i = 0; i < kCount; ++i) {
    evaluate(pattern_of(i), expected);
    if (std::memcmp(expected, &got[static_cast<std::size_t>(i) * kWords], sizeof expected) == 0) {
      continue;
    }
    for (int w = 0; w < kWords; ++w) {
      const std::uint32_t value = got[static_cast<std::size_t>(i) * kWords + w];
      if (value == expected[w]) continue;
      std::printf("input 0x%08x word %d: host 0x%x, device 0x%x\n", pattern_of(i), w, expected[w],
                  value);
    }
    return 1;
  }
  std::printf("%u inputs, %d results each: device equals host\n", kCount, kWords);
  return 0;
}
