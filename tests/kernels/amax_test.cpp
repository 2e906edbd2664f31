#include "octavo/kernels/cpu/amax.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "octavo/kernels/cpu/targets.h"

namespace octavo::kernels {
namespace {

constexpr HighPrecision kTypes[] = {HighPrecision::kFloat32, HighPrecision::kBFloat16,
                                    HighPrecision::kFloat16};

// A matrix of random finite bit patterns with a gap after each row.
struct Matrix {
  HighPrecision type;
  std::int64_t rows, columns, stride;
  std::vector<std::uint32_t> bits;
  std::vector<std::uint8_t> memory;

  Matrix(HighPrecision t, std::int64_t m, std::int64_t k)
      : type(t), rows(m), columns(k), stride(k + 3) {
    std::mt19937 random(static_cast<std::uint32_t>(m * 1000 + k));
    for (std::int64_t i = 0; i < rows * stride; ++i) {
      std::uint32_t b;
      do {
        b = random() >> (bytes_of(type) == 2 ? 16 : 0);
      } while (!std::isfinite(value_of(type, b)));
      bits.push_back(b);
    }
    pack();
  }
  void pack() {
    memory.clear();
    for (std::uint32_t b : bits) {
      for (int byte = 0; byte < bytes_of(type); ++byte) {
        memory.push_back(static_cast<std::uint8_t>(b >> 8 * byte));
      }
    }
  }
  void set(std::int64_t r, std::int64_t c, std::uint32_t b) {
    bits[static_cast<std::size_t>(r * stride + c)] = b;
    pack();
  }
  float at(std::int64_t r, std::int64_t c) const {
    return value_of(type, bits[static_cast<std::size_t>(r * stride + c)]);
  }
  ConstMatrix view() const { return {memory.data(), type, rows, columns, stride, 1}; }
};

// NaN wins, by definition.
float larger(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
  return std::max(a, std::fabs(b));
}

bool same(float a, float b) { return std::isnan(b) ? std::isnan(a) : a == b; }

void expect_amax(const Matrix& x, std::int64_t begin, std::int64_t end, const std::string& what) {
  float whole = 0;
  std::vector<float> rows(static_cast<std::size_t>(x.rows), -1.0f);
  std::vector<float> columns(static_cast<std::size_t>(x.columns), 0.0f);
  for (std::int64_t r = begin; r < end; ++r) {
    float row = 0;
    for (std::int64_t c = 0; c < x.columns; ++c) {
      row = larger(row, x.at(r, c));
      float& column = columns[static_cast<std::size_t>(c)];
      column = larger(column, x.at(r, c));
    }
    rows[static_cast<std::size_t>(r)] = row;
    whole = larger(whole, row);
  }
  for (std::int64_t cpu : cpu_targets()) {
    use_cpu_target(cpu);
    const std::string at = what + " " + cpu_target_name(cpu) + " type " +
                           std::to_string(static_cast<int>(x.type)) + " " + std::to_string(x.rows) +
                           "x" + std::to_string(x.columns);
    for (bool with_rows : {false, true}) {
      for (bool with_columns : {false, true}) {
        std::vector<float> row_amax(rows.size(), -1.0f);  // -1: not to be written
        std::vector<std::uint32_t> column_bits(columns.size(), 0);
        const float result = amax(x.view(), begin, end, with_rows ? row_amax.data() : nullptr,
                                  with_columns ? column_bits.data() : nullptr);
        EXPECT_TRUE(same(result, whole)) << at << ": " << result << " for " << whole;
        for (std::size_t r = 0; with_rows && r < rows.size(); ++r) {
          ASSERT_TRUE(same(row_amax[r], rows[r]))
              << at << " row " << r << ": " << row_amax[r] << " for " << rows[r];
        }
        for (std::size_t c = 0; with_columns && c < columns.size(); ++c) {
          const float value = value_of(x.type, column_bits[c]);
          ASSERT_TRUE(same(value, columns[c]))
              << at << " column " << c << ": " << value << " for " << columns[c];
        }
      }
    }
  }
  use_cpu_target(0);
}

TEST(Amax, AwkwardSizes) {
  for (HighPrecision type : kTypes) {
    for (std::int64_t rows : {1, 3, 4, 5, 9}) {
      for (std::int64_t columns : {1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 300}) {
        expect_amax(Matrix(type, rows, columns), 0, rows, "all");
        if (rows > 2) expect_amax(Matrix(type, rows, columns), 1, rows - 1, "a range");
      }
    }
  }
}

TEST(Amax, EmptyIsZero) {
  const Matrix x(HighPrecision::kFloat32, 4, 8);
  EXPECT_EQ(amax(x.view(), 2, 2, nullptr, nullptr), 0.0f);
  ConstMatrix no_columns = x.view();
  no_columns.columns = 0;
  std::vector<float> rows(4, -1.0f);
  EXPECT_EQ(amax(no_columns, 0, 4, rows.data(), nullptr), 0.0f);
  EXPECT_EQ(rows, std::vector<float>(4, 0.0f));
}

TEST(Amax, NaNAndInfSurviveAnywhere) {
  for (HighPrecision type : kTypes) {
    const bool wide = type == HighPrecision::kFloat32;
    const std::uint32_t infinity = wide                               ? 0x7F800000u
                                   : type == HighPrecision::kBFloat16 ? 0x7F80u
                                                                      : 0x7C00u;
    const std::uint32_t sign = wide ? 0x80000000u : 0x8000u;
    // Inf, -Inf, the smallest NaN payload, a negative NaN with every bit set.
    for (std::uint32_t bits : {infinity, infinity | sign, infinity + 1, sign | (sign - 1)}) {
      for (std::int64_t c = 0; c < 70; c += 3) {
        Matrix x(type, 5, 70);
        x.set(c % 5, c, bits);
        expect_amax(x, 0, 5, "bits " + std::to_string(bits) + " column " + std::to_string(c));
      }
    }
  }
}

TEST(Amax, NegativeZeroAndSubnormals) {
  const std::vector<float> x = {-0.0f, 1e-45f, -3e-45f, 0.0f};
  const ConstMatrix view{x.data(), HighPrecision::kFloat32, 1, 4, 4, 1};
  EXPECT_EQ(std::bit_cast<std::uint32_t>(amax(view, 0, 1, nullptr, nullptr)),
            std::bit_cast<std::uint32_t>(3e-45f));
  const ConstMatrix zeros{x.data(), HighPrecision::kFloat32, 1, 1, 1, 1};
  EXPECT_EQ(std::bit_cast<std::uint32_t>(amax(zeros, 0, 1, nullptr, nullptr)), 0u);
}

}  // namespace
}  // namespace octavo::kernels
