#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "octavo/formats/codec.h"
#include "octavo/formats/e8m0.h"
#include "octavo/formats/scaling.h"
#include "octavo/kernels/gpu/types.h"

/// Operands, guarded device buffers and comparisons for the tests of kernels/gpu.
namespace octavo::gpu::testing {

#define OCTAVO_REQUIRE_GPU()                                           \
  do {                                                                 \
    int devices = 0;                                                   \
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) { \
      (void)cudaGetLastError();                                        \
      GTEST_SKIP() << "no GPU on this machine";                        \
    }                                                                  \
  } while (0)

inline void check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

/// Device memory with guard bytes on both sides, filled with 0xA5 so that an element nobody wrote
/// and a write outside are both seen.
class DeviceBuffer {
 public:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::uint8_t kPoison = 0xA5;

  explicit DeviceBuffer(std::size_t bytes, std::size_t misalignment = 0)
      : bytes_(bytes), before_(kGuard + misalignment) {
    check(cudaMalloc(&base_, before_ + bytes_ + kGuard));
    check(cudaMemset(base_, kPoison, before_ + bytes_ + kGuard));
  }
  ~DeviceBuffer() { (void)cudaFree(base_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  template <class T = void>
  T* get() const {
    return reinterpret_cast<T*>(static_cast<char*>(base_) + before_);
  }
  void zero() { check(cudaMemset(get(), 0, bytes_)); }
  void upload(const void* from) { check(cudaMemcpy(get(), from, bytes_, cudaMemcpyHostToDevice)); }
  template <class T>
  std::vector<T> download() const {
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
    std::vector<std::uint8_t> all(before_ + bytes_ + kGuard);
    check(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i == before_) i += bytes_;
      if (i >= all.size()) break;
      if (all[i] != kPoison) {
        ADD_FAILURE() << "byte " << static_cast<long>(i) - static_cast<long>(before_)
                      << " outside a buffer of " << bytes_ << " was written";
        break;
      }
    }
    std::vector<T> values(bytes_ / sizeof(T));
    std::memcpy(values.data(), all.data() + before_, bytes_);
    return values;
  }

 private:
  std::size_t bytes_, before_;
  void* base_ = nullptr;
};

inline float to_float(DType dtype, std::uint32_t bits) {
  if (dtype == DType::kBF16) return internal::float_of(bits << 16);
  if (dtype == DType::kFP16) {
    return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<std::uint16_t>(bits)));
  }
  return internal::float_of(bits);
}

inline std::uint32_t from_float(DType dtype, float x) {
  const std::uint32_t bits = internal::bits_of(x);
  if (dtype == DType::kBF16) return bits >> 16;  // truncated: tests only need some number
  if (dtype == DType::kFP16) return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(x));
  return bits;
}

/// How x lies in memory.
enum class View { kContiguous, kPaddedRows, kMisaligned, kTransposed, kEverySecond, kBroadcastRow };
inline constexpr View kAllViews[] = {View::kContiguous, View::kPaddedRows,  View::kMisaligned,
                                     View::kTransposed, View::kEverySecond, View::kBroadcastRow};

/// What x holds. kAdversarial has zero rows and blocks, NaN, +-Inf, subnormals, -0 and amaxes at
/// the ends of the range, few enough that most blocks stay finite.
enum class Values { kNormal, kAdversarial, kAnyBits };

/// x (M, K) on the host (as bits, row-major) and on the device (as the view lies).
class Operand {
 public:
  Operand(DType dtype, std::int64_t rows, std::int64_t columns, View view, Values values,
          unsigned seed = 1)
      : dtype_(dtype), rows_(rows), columns_(columns), bits_(rows * columns) {
    fill(values, seed);
    if (view == View::kBroadcastRow) {
      for (std::int64_t m = 1; m < rows; ++m) {
        for (std::int64_t k = 0; k < columns; ++k) bits_[m * columns + k] = bits_[k];
      }
    }
    lay_out(view);
  }

  const Matrix& matrix() const { return matrix_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  float at(std::int64_t m, std::int64_t k) const {
    return to_float(dtype_, bits_[m * columns_ + k]);
  }

 private:
  void fill(Values values, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<std::uint32_t> any;
    const std::uint32_t mask = dtype_ == DType::kFP32 ? 0xFFFFFFFFu : 0xFFFFu;
    for (auto& b : bits_) {
      b = values == Values::kAnyBits ? any(random) & mask : from_float(dtype_, normal(random));
    }
    if (values != Values::kAdversarial) return;
    const float special[] = {NAN,     -NAN,    INFINITY, -INFINITY,
                             0.0f,    -0.0f,   1e-36f,   1e-42f,
                             3.0e38f, -6.0e4f, 448.0f,   std::nextafter(1.75f, 2.0f)};
    for (std::int64_t m = 0; m < rows_; ++m) {
      const std::uint32_t what = any(random) % 16;
      for (std::int64_t k = 0; k < columns_; ++k) {
        auto& b = bits_[m * columns_ + k];
        if (what == 0) b = from_float(dtype_, k % 2 ? 0.0f : -0.0f);
        if (what == 1) b = from_float(dtype_, normal(random) * 1e-13f);
        if (what == 2) b = from_float(dtype_, normal(random) * 1e-37f);
        if (what == 3 && dtype_ != DType::kFP16) b = from_float(dtype_, normal(random) * 3e37f);
        if (any(random) % 2048 == 0) b = from_float(dtype_, special[any(random) % 12]);
      }
    }
    for (std::int64_t k = 0; k < columns_; k += 37) {  // columns of zeros
      for (std::int64_t m = 0; m < rows_; ++m) bits_[m * columns_ + k] = 0;
    }
  }

  void lay_out(View view) {
    std::int64_t row_stride = columns_, column_stride = 1, offset = 0;
    switch (view) {
      case View::kContiguous:
        break;
      case View::kPaddedRows:
        row_stride = columns_ + 24, offset = 8;
        break;
      case View::kMisaligned:
        offset = 1;
        break;
      case View::kTransposed:
        row_stride = 1, column_stride = rows_;
        break;
      case View::kEverySecond:
        row_stride = 2 * columns_ + 3, column_stride = 2;
        break;
      case View::kBroadcastRow:
        row_stride = 0;
        break;
    }
    const std::size_t element = static_cast<std::size_t>(bytes_of(dtype_));
    std::size_t count = static_cast<std::size_t>(offset);
    if (rows_ > 0 && columns_ > 0) {
      count +=
          static_cast<std::size_t>((rows_ - 1) * row_stride + (columns_ - 1) * column_stride + 1);
    }
    std::vector<std::uint8_t> bytes(count * element, 0x7F);  // NaN around the view, in every type
    for (std::int64_t m = 0; m < rows_; ++m) {
      for (std::int64_t k = 0; k < columns_; ++k) {
        std::memcpy(
            &bytes[static_cast<std::size_t>(offset + m * row_stride + k * column_stride) * element],
            &bits_[m * columns_ + k], element);
      }
    }
    device_ = std::make_unique<DeviceBuffer>(bytes.size());
    device_->upload(bytes.data());
    matrix_ = {device_->get<char>() + offset * static_cast<std::int64_t>(element),
               dtype_,
               rows_,
               columns_,
               row_stride,
               column_stride};
  }

  DType dtype_;
  std::int64_t rows_, columns_;
  std::vector<std::uint32_t> bits_;
  std::unique_ptr<DeviceBuffer> device_;
  Matrix matrix_;
};

/// The larger magnitude; NaN wins.
inline float amax_of(float so_far, float x) {
  if (so_far != so_far) return so_far;
  const float magnitude = std::fabs(x);
  return magnitude != magnitude || magnitude > so_far ? magnitude : so_far;
}

/// Equal bits, or both NaN (payloads are the machine's own affair).
inline bool same(float a, float b) {
  return (a != a && b != b) || internal::bits_of(a) == internal::bits_of(b);
}

inline void expect_same(const std::vector<float>& actual, const std::vector<float>& expected,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(same(actual[i], expected[i]))
        << what << "[" << i << "]: " << actual[i] << ", expected " << expected[i];
  }
}

inline void expect_same(const std::vector<std::uint8_t>& actual,
                        const std::vector<std::uint8_t>& expected, std::int64_t columns,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(int{actual[i]}, int{expected[i]})
        << what << "[" << i / static_cast<std::size_t>(columns) << ", "
        << i % static_cast<std::size_t>(columns) << "]";
  }
}

struct Size {
  std::int64_t rows, columns;
};
/// Around thread (16 x 8), warp (64 x 64) and tile (128 x 128) sizes, and none of them.
inline constexpr Size kSizes[] = {{1, 1},     {1, 7},     {15, 33},   {16, 8},    {17, 8},
                                  {16, 24},   {33, 127},  {48, 72},   {64, 64},   {127, 128},
                                  {128, 128}, {129, 136}, {144, 264}, {256, 384}, {272, 512},
                                  {3, 4112},  {2064, 16}, {300, 301}};

inline constexpr DType kDTypes[] = {DType::kBF16, DType::kFP16, DType::kFP32};

inline std::string describe(DType dtype, const Size& size, View view, Values values) {
  const char* dtypes[] = {"bf16", "fp16", "fp32"};
  return std::string(dtypes[static_cast<int>(dtype)]) + " " + std::to_string(size.rows) + "x" +
         std::to_string(size.columns) + " view " + std::to_string(static_cast<int>(view)) +
         " values " + std::to_string(static_cast<int>(values));
}

/// Calls test(dtype, size, view, values) over the grid; not every view of every size.
template <class Test>
void for_all_operands(const Test& test) {
  int i = 0;
  for (DType dtype : kDTypes) {
    for (const Size& size : kSizes) {
      for (Values values : {Values::kNormal, Values::kAdversarial, Values::kAnyBits}) {
        test(dtype, size, View::kContiguous, values);
        if (::testing::Test::HasFatalFailure()) return;
      }
      for (View view : kAllViews) {
        if (view != View::kContiguous && i++ % 3 == 0) {
          test(dtype, size, view, Values::kAdversarial);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace octavo::gpu::testing
