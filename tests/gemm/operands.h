#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "octavo/formats/codec.h"
#include "octavo/formats/e8m0.h"
#include "octavo/quantize/scaled_tensor.h"

namespace octavo {

inline constexpr Granularity kTensor = Granularity::tensorwise(), kRow = Granularity::rowwise(),
                             k1x128 = Granularity::block_1x128(),
                             k128x128 = Granularity::block_128x128(), kMx = Granularity::mx_1x32();

namespace testing {

/// An empty scale tensor (rows, columns) in `layout`'s strides.
inline at::Tensor empty_scale(std::int64_t rows, std::int64_t columns, at::ScalarType dtype,
                              ScaleLayout layout) {
  std::int64_t row_stride = std::max<std::int64_t>(columns, 1), column_stride = 1;
  if (layout == ScaleLayout::kColumnMajor) row_stride = 1, column_stride = rows;
  if (layout == ScaleLayout::kPadded4) row_stride = (columns + 3) / 4 * 4;
  return at::empty_strided({rows, columns}, {row_stride, column_stride}, dtype);
}

inline std::uint8_t* bytes_of(const ScaledTensor& matrix) {
  return static_cast<std::uint8_t*>(matrix.data.data_ptr());
}

/// The scale of element (r, c) by the definition of a granularity.
inline double scale_at(const ScaledTensor& matrix, std::int64_t r, std::int64_t c) {
  const Granularity& g = matrix.granularity;
  const std::int64_t i = g.block_rows == 0 ? 0 : r / g.block_rows;
  const std::int64_t j = g.block_columns == 0 ? 0 : c / g.block_columns;
  const std::int64_t at = i * matrix.scale.stride(0) + j * matrix.scale.stride(1);
  if (!g.mx) return matrix.scale.const_data_ptr<float>()[at];
  const int code = static_cast<const std::uint8_t*>(matrix.scale.const_data_ptr())[at];
  return code == kE8M0NaN ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
}

/// value = data * scale in double, row-major (R, C): what a product has to multiply.
inline std::vector<double> values_of(const ScaledTensor& matrix) {
  std::vector<double> out;
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    for (std::int64_t c = 0; c < matrix.columns(); ++c) {
      const std::uint8_t byte = bytes_of(matrix)[r * matrix.data.stride(0) + c];
      out.push_back(double{decode(matrix.format(), byte)} * scale_at(matrix, r, c));
    }
  }
  return out;
}

/// Normal numbers times `spread`^(row + column / 64), quantised block by block with the scale
/// amax / max (rounded up to a power of two for MX). For products only: quantize_operand()'s own
/// bits are tested where it lives.
inline ScaledTensor random_operand(std::int64_t rows, std::int64_t columns, Format format,
                                   const Granularity& granularity, int seed, double spread = 1.0) {
  std::mt19937 generator(static_cast<std::uint32_t>(seed));
  std::normal_distribution<double> normal;
  std::vector<double> x(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    x[i] = normal(generator) *
           std::pow(spread, static_cast<double>(i / columns % 7 + i % columns / 64 % 5));
  }
  ScaledTensor out;
  out.granularity = granularity;
  out.scale_layout = default_scale_layout(granularity);
  out.logical_sizes = {rows, columns};
  out.data = at::empty({rows, columns}, scalar_type(format));
  const std::int64_t scale_rows = granularity.scale_rows(rows);
  const std::int64_t scale_columns = granularity.scale_columns(columns);
  out.scale = empty_scale(scale_rows, scale_columns,
                          granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat, out.scale_layout);
  const std::int64_t block_rows = granularity.block_rows == 0 ? rows : granularity.block_rows;
  const std::int64_t block_columns =
      granularity.block_columns == 0 ? columns : granularity.block_columns;
  for (std::int64_t i = 0; i < scale_rows; ++i) {
    for (std::int64_t j = 0; j < scale_columns; ++j) {
      const std::int64_t row_end = std::min(rows, (i + 1) * block_rows);
      const std::int64_t column_end = std::min(columns, (j + 1) * block_columns);
      double amax = 1e-30;
      for (std::int64_t r = i * block_rows; r < row_end; ++r) {
        for (std::int64_t c = j * block_columns; c < column_end; ++c) {
          amax = std::max(amax, std::fabs(x[r * columns + c]));
        }
      }
      double scale = amax / double{limits(format).max};
      const std::int64_t at = i * out.scale.stride(0) + j * out.scale.stride(1);
      if (granularity.mx) {
        const int exponent = static_cast<int>(std::ceil(std::log2(scale)));
        static_cast<std::uint8_t*>(out.scale.data_ptr())[at] =
            static_cast<std::uint8_t>(exponent + 127);
        scale = std::ldexp(1.0, exponent);
      } else {
        out.scale.mutable_data_ptr<float>()[at] = static_cast<float>(scale);
        scale = static_cast<float>(scale);
      }
      for (std::int64_t r = i * block_rows; r < row_end; ++r) {
        for (std::int64_t c = j * block_columns; c < column_end; ++c) {
          bytes_of(out)[r * columns + c] =
              encode(format, static_cast<float>(x[r * columns + c] / scale));
        }
      }
    }
  }
  return out;
}

/// out[M,N] = a . b^T + bias in double, from values_of() both.
inline std::vector<double> exact_product(const ScaledTensor& a, const ScaledTensor& b,
                                         const std::optional<at::Tensor>& bias = std::nullopt) {
  const std::vector<double> x = values_of(a), w = values_of(b);
  const std::int64_t m_size = a.rows(), n_size = b.rows(), k_size = a.columns();
  std::vector<double> out(static_cast<std::size_t>(m_size * n_size));
  for (std::int64_t m = 0; m < m_size; ++m) {
    for (std::int64_t n = 0; n < n_size; ++n) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < k_size; ++k) sum += x[m * k_size + k] * w[n * k_size + k];
      out[m * n_size + n] = bias ? sum + (*bias)[n].item<double>() : sum;
    }
  }
  return out;
}

/// 10 log10(sum of expected^2 / sum of (actual - expected)^2), NaN if either holds one, infinity
/// for equal values. Compare as EXPECT_TRUE(snr >= bound), so that NaN fails.
inline double snr_db(const at::Tensor& actual, const std::vector<double>& expected) {
  const at::Tensor flat = actual.to(at::kDouble).contiguous();
  double signal = 0.0, noise = 0.0;
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    const double error = flat.const_data_ptr<double>()[i] - expected[i];
    signal += expected[i] * expected[i];
    noise += error * error;
  }
  if (noise == 0.0) return std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(signal / noise);
}

}  // namespace testing
}  // namespace octavo
