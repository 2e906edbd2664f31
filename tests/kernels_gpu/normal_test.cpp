#include "octavo/kernels/gpu/normal.h"

#include "octavo/kernels/host_arithmetic.h"
#include "octavo/kernels/matrix.h"
#include "operands.h"

namespace octavo::gpu::testing {
namespace {

TEST(GpuNormal, HasTheCpusBits) {
  OCTAVO_REQUIRE_GPU();
  for (const std::int64_t size : {1, 3, 4, 1021, 3000000}) {
    const kernels::NormalSource source{
        .seed = 0x123456789ABCDEFu, .stream = static_cast<std::uint64_t>(size), .deviation = 0.02};
    for (const DType dtype : {DType::kFP32, DType::kBF16}) {
      const std::size_t bytes = static_cast<std::size_t>(size) * bytes_of(dtype);
      std::vector<std::uint8_t> want(bytes);
      for (std::int64_t i = 0; i < size; ++i) {
        float value[4];
        kernels::normal_values<kernels::HostArithmetic>(source, static_cast<std::uint64_t>(i / 4),
                                                        value);
        const std::uint16_t half = kernels::bfloat16_bits(value[i % 4]);
        const void* element =
            dtype == DType::kFP32 ? static_cast<const void*>(&value[i % 4]) : &half;
        std::memcpy(&want[i * bytes_of(dtype)], element, bytes_of(dtype));
      }
      DeviceBuffer buffer(bytes);
      fill_normal(source, dtype, buffer.get(), size, nullptr);
      const std::vector<std::uint8_t> got = buffer.download<std::uint8_t>();
      const auto differ = std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin();
      EXPECT_EQ(differ, static_cast<std::ptrdiff_t>(bytes)) << size << " elements";
    }
  }
  fill_normal({}, DType::kFP32, nullptr, 0, nullptr);
  check(cudaGetLastError());
}

}  // namespace
}  // namespace octavo::gpu::testing
