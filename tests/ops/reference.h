#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "octavo/ops/float8_linear.h"
#include "octavo/quantize/quantize.h"

// What the tests of ops/ share: the recipes, signal-to-noise, and one linear computed in fp64 from
// dequantised operands.
namespace octavo::testing {

/// The recipes with every variation that changes a product on the CPU.
inline std::vector<std::string> recipes() {
  return {"tensorwise",
          "tensorwise(flavour=fnuz)",
          "tensorwise(gw_high_precision=true)",
          "rowwise",
          "rowwise(flavour=fnuz)",
          "rowwise(gw_high_precision=true)",
          "rowwise_with_gw_hp",
          "rowwise_with_gw_hp(flavour=fnuz)",
          "blockwise",
          "blockwise(flavour=fnuz)",
          "mxfp8",
          "mxfp8(mx_rounding=floor)",
          "mxfp8(mx_rounding=ceil)",
          "mxfp8(mx_rounding=even)",
          "mxfp8(gw_high_precision=true)"};
}

/// 10 log10(|reference|^2 / |value - reference|^2); Inf where equal, NaN where either has NaN.
inline double decibels(const at::Tensor& value, const at::Tensor& reference) {
  const at::Tensor expected = reference.to(at::kDouble);
  const double noise = (value.to(at::kDouble) - expected).square().sum().item<double>();
  if (noise == 0.0) return INFINITY;
  return 10.0 * std::log10(expected.square().sum().item<double>() / noise);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() &&
         at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

/// An operand's layout as fp64 values, or the operand itself where the product is in high
/// precision.
inline at::Tensor layout_values(const at::Tensor& operand, const std::optional<LayoutSpec>& spec,
                                bool transposed) {
  const at::Tensor matrix = transposed ? operand.t() : operand;
  if (!spec) return matrix.to(at::kDouble);
  return dequantize(quantize_operand(matrix, {.rows = spec}).rows).to(at::kDouble);
}

struct Gradients {
  at::Tensor y, dx, dw, dbias;
};

/// One linear, its output and its gradients in fp64 from the dequantised operands.
/// x: (M, K), w: (N, K), bias: (N) or undefined, dy: (M, N).
inline Gradients reference_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                                  const at::Tensor& dy, const Recipe& recipe) {
  const LinearSpec spec = recipe.resolve(Flavour::kOCP);
  Gradients out;
  out.y =
      at::mm(layout_values(x, spec.forward.a, false), layout_values(w, spec.forward.b, false).t());
  if (bias.defined()) out.y = out.y + bias.to(at::kDouble);
  out.dx = at::mm(layout_values(dy, spec.dx.a, false), layout_values(w, spec.dx.b, true).t());
  out.dw = at::mm(layout_values(dy, spec.dw.a, true), layout_values(x, spec.dw.b, true).t());
  out.dbias = dy.to(at::kDouble).sum(0);
  return out;
}

/// A leaf of the given dtype.
inline at::Tensor leaf(const at::Tensor& values, at::ScalarType dtype, bool requires_grad = true) {
  return values.to(dtype).detach().clone().set_requires_grad(requires_grad);
}

}  // namespace octavo::testing
