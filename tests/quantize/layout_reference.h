#pragma once

// One layout of an operand by definition, for the tests of quantize_operand().

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "octavo/quantize/quantize.h"
#include "tests/quantize/scaling_reference.h"

namespace octavo::reference {

/// (R, C) values in row-major order.
struct Values {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> at;

  float operator()(std::int64_t r, std::int64_t c) const {
    return at[static_cast<std::size_t>(r * columns + c)];
  }
};

/// The elements of x one by one, whatever its strides.
inline Values values_of(const at::Tensor& x) {
  Values out{x.size(0), x.size(1), {}};
  const at::Tensor plain = x.to(at::kFloat).contiguous();
  out.at.assign(plain.data_ptr<float>(), plain.data_ptr<float>() + plain.numel());
  return out;
}

inline Values transpose(const Values& x) {
  Values out{x.columns, x.rows, {}};
  for (std::int64_t c = 0; c < x.columns; ++c) {
    for (std::int64_t r = 0; r < x.rows; ++r) out.at.push_back(x(r, c));
  }
  return out;
}

struct Layout {
  std::vector<std::uint8_t> data;  ///< (R, C)
  std::vector<float> scale;        ///< by block rows and columns; the codes' values for MX
};

inline Layout quantize_layout(const Values& x, const LayoutSpec& spec) {
  const Granularity& g = spec.granularity;
  const std::int64_t height = g.block_rows ? g.block_rows : x.rows;
  const std::int64_t width = g.block_columns ? g.block_columns : x.columns;
  Layout out;
  out.data.resize(x.at.size());
  for (std::int64_t i = 0; i < g.scale_rows(x.rows); ++i) {
    for (std::int64_t j = 0; j < g.scale_columns(x.columns); ++j) {
      const std::int64_t r1 = std::min(x.rows, (i + 1) * height);
      const std::int64_t c1 = std::min(x.columns, (j + 1) * width);
      float amax = 0;
      for (std::int64_t r = i * height; r < r1; ++r) {
        for (std::int64_t c = j * width; c < c1; ++c) {
          if (std::isnan(x(r, c))) amax = std::numeric_limits<float>::quiet_NaN();
          if (std::fabs(x(r, c)) > amax) amax = std::fabs(x(r, c));
        }
      }
      float inv = 0;
      if (g.mx) {
        const int code = mx_code(spec.format, amax, spec.mx_rounding);
        inv = code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, 127 - code);
        out.scale.push_back(static_cast<float>(code));
      } else {
        inv = inv_scale(spec.format, amax, spec.scale_rounding);
        out.scale.push_back(scale(inv));
      }
      for (std::int64_t r = i * height; r < r1; ++r) {
        for (std::int64_t c = j * width; c < c1; ++c) {
          out.data[static_cast<std::size_t>(r * x.columns + c)] =
              quantize(spec.format, x(r, c), inv);
        }
      }
    }
  }
  return out;
}

/// `got` is the layout `want` of an (R, C) matrix: bytes and scales bit for bit, sizes, dtypes and
/// the scales' memory layout.
inline ::testing::AssertionResult is_layout(const ScaledTensor& got, const LayoutSpec& spec,
                                            const Layout& want, std::int64_t rows,
                                            std::int64_t columns) {
  const auto fail = [&] {
    return ::testing::AssertionFailure() << to_string(spec.granularity) << " " << name(spec.format)
                                         << " of " << rows << "x" << columns << ": ";
  };
  const Granularity& g = spec.granularity;
  if (!got.defined()) return fail() << "absent";
  if (got.data.sizes() != at::IntArrayRef({rows, columns})) return fail() << got.data.sizes();
  if (got.data.scalar_type() != scalar_type(spec.format)) return fail() << got.data.dtype();
  if (!got.data.is_contiguous()) return fail() << "data not contiguous";
  if (!(got.granularity == g)) return fail() << "granularity " << to_string(got.granularity);
  if (got.logical_sizes != std::vector<std::int64_t>{rows, columns}) return fail() << "sizes";
  const std::int64_t scale_rows = g.scale_rows(rows), scale_columns = g.scale_columns(columns);
  if (got.scale.sizes() != at::IntArrayRef({scale_rows, scale_columns})) {
    return fail() << "scale sizes " << got.scale.sizes();
  }
  if (got.scale.scalar_type() != (g.mx ? at::kFloat8_e8m0fnu : at::kFloat)) {
    return fail() << "scale dtype " << got.scale.dtype();
  }
  if (got.scale_layout != default_scale_layout(g)) return fail() << "scale layout";
  if (got.scale_layout == ScaleLayout::kColumnMajor && scale_rows > 0 && scale_columns > 0 &&
      got.scale.strides() != at::IntArrayRef({1, scale_rows})) {
    return fail() << "scale strides " << got.scale.strides();
  }
  if (got.scale_layout == ScaleLayout::kPadded4 &&
      got.scale.strides() != at::IntArrayRef({(scale_columns + 3) / 4 * 4, 1})) {
    return fail() << "scale strides " << got.scale.strides();
  }

  const at::Tensor scale =
      got.scale.view(g.mx ? at::kByte : at::kFloat).to(at::kFloat).contiguous();
  for (std::size_t i = 0; i < want.scale.size(); ++i) {
    const float a = scale.data_ptr<float>()[i], b = want.scale[i];
    if (!(a == b || (std::isnan(a) && std::isnan(b)))) {
      return fail() << "scale of block " << i << " is " << a << ", expected " << b;
    }
  }
  const auto* bytes = static_cast<const std::uint8_t*>(got.data.const_data_ptr());
  for (std::size_t i = 0; i < want.data.size(); ++i) {
    if (bytes[i] != want.data[i]) {
      const auto at = static_cast<std::int64_t>(i);
      return fail() << "byte at row " << at / columns << " column " << at % columns << " is "
                    << int{bytes[i]} << ", expected " << int{want.data[i]};
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace octavo::reference
