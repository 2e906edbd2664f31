#include "octavo/ops/float8_swiglu_mlp.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/gemm/scaled_mm.h"
#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/float8_swiglu_mlp_ops.h"
#include "octavo/ops/names.h"
#include "octavo/ops/operands.h"
#include "octavo/ops/recorded.h"
#include "octavo/ops/scale_layout.h"
#include "octavo/ops/swiglu_operand.h"

namespace octavo::ops {
namespace {

constexpr OperandNames kOperands[3] = {{"float8_swiglu_mlp", "x", "w_gate"},
                                       {"float8_swiglu_mlp", "x", "w_up"},
                                       {"float8_swiglu_mlp", "h", "w_down"}};
constexpr const char* kWeightScaleNames[3] = {"w_gate_scale", "w_up_scale", "w_down_scale"};

void check_mlp_sizes(const at::Tensor& x, const std::array<at::Tensor, 3>& w) {
  TORCH_CHECK(
      w[0].sizes() == w[1].sizes() && x.size(-1) == w[0].size(1) && w[2].size(1) == w[0].size(0),
      "float8_swiglu_mlp: expected x (..., D), w_gate and w_up (F, D) and w_down (D', F), got ",
      x.sizes(), ", ", w[0].sizes(), ", ", w[1].sizes(), " and ", w[2].sizes(),
      "; transpose weights that are stored the other way");
}

at::Tensor mlp_kernel(const at::Tensor& x, const at::Tensor& w_gate, const at::Tensor& w_up,
                      const at::Tensor& w_down, std::string_view recipe,
                      std::string_view keep_weight_transposed, bool fuse) {
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  return std::get<0>(call_float8_swiglu_mlp_forward(x, w_gate, w_up, w_down, recipe,
                                                    /*need_dx=*/false, /*need_dw=*/false,
                                                    /*keep=*/false, fuse));
}

MlpForwardResult mlp_forward_kernel(const at::Tensor& x, const at::Tensor& w_gate,
                                    const at::Tensor& w_up, const at::Tensor& w_down,
                                    std::string_view recipe, bool need_dx, bool need_dw,
                                    bool keep_weight_transposed, bool fuse) {
  return float8_swiglu_mlp_forward_kernel(x, {w_gate, w_up, w_down}, recipe, need_dx, need_dw,
                                          keep_weight_transposed, fuse, {});
}

MlpBackwardResult mlp_backward_kernel(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
    const std::optional<at::Tensor>& x, const std::optional<at::Tensor>& x_scale,
    const std::optional<at::Tensor>& h, const std::optional<at::Tensor>& h_scale,
    const at::Tensor& w_gate, const std::optional<at::Tensor>& w_gate_scale, const at::Tensor& w_up,
    const std::optional<at::Tensor>& w_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>& w_down_scale, std::string_view recipe, bool need_dx,
    at::ScalarType dw_dtype, bool fuse) {
  return float8_swiglu_mlp_backward_kernel({.dy = dy,
                                            .gate = gate,
                                            .up = up,
                                            .x = x,
                                            .x_scale = x_scale,
                                            .h = h,
                                            .h_scale = h_scale,
                                            .w = {w_gate, w_up, w_down},
                                            .w_scale = {w_gate_scale, w_up_scale, w_down_scale}},
                                           recipe, need_dx, dw_dtype, fuse, {});
}

}  // namespace

MlpForwardResult float8_swiglu_mlp_forward_kernel(const at::Tensor& x,
                                                  const std::array<at::Tensor, 3>& w,
                                                  std::string_view recipe, bool need_dx,
                                                  bool need_dw, bool keep_weight_transposed,
                                                  bool fuse, const MlpQuantized& quantized) {
  const auto& given = quantized.weights;
  const LinearSpec spec = resolve_for(recipe, x.device());
  check_mlp_arguments(x, w[0], w[1], w[2]);
  check_mlp_sizes(x, w);
  const bool high_precision_dw = need_dw && spec.dw.high_precision();
  const std::optional<LayoutSpec> for_dw =
      need_dw && !spec.dw.high_precision() ? spec.dw.b : std::nullopt;
  std::vector<at::Tensor> saved(kMlpSavedCount);
  const auto save = [&](std::size_t at, const ScaledTensor& layout) {
    saved[at] = to_bytes(layout.data);
    saved[at + 1] = scale_bytes(layout);
  };
  // gate and up lead back to x, down to h, which every gradient but its own comes through.
  const auto quantized_weight = [&](std::size_t i) {
    const bool needed = i == 2 ? need_dx || need_dw : need_dx;
    const std::optional<LayoutSpec> transposed =
        needed && keep_weight_transposed && (!given[i] || !given[i]->transposed.defined())
            ? spec.dx.b
            : std::nullopt;
    const QuantizedOperand operand =
        operand_of(kOperands[i].w, kWeightScaleNames[i], w[i],
                   given[i] ? if_defined(given[i]->rows) : std::nullopt,
                   given[i] ? if_defined(given[i]->rows_scale) : std::nullopt, *spec.forward.b,
                   transposed, quantized.weight_amaxes[i]);
    if (transposed) save(kWeights + 2 * i, operand.transposed);
    return operand.rows;
  };
  const MatmulOptions product{.out_dtype = x.scalar_type(),
                              .fast_accumulation = spec.forward.fast_accumulation};

  at::Tensor gate, up;
  {
    QuantizedOperand x_fp8;
    if (const QuantizedLayouts* input = quantized.input) {
      x_fp8 = operand_of("x", "x_rows_scale", as_matrix(x), input->rows, input->rows_scale,
                         *spec.forward.a, std::nullopt);
      if (for_dw) saved[kX] = input->transposed, saved[kXScale] = input->transposed_scale;
    } else {
      x_fp8 = quantize_operand(as_matrix(x), {.rows = spec.forward.a, .transposed = for_dw});
      if (for_dw) save(kX, x_fp8.transposed);
    }
    gate = scaled_mm(x_fp8.rows, quantized_weight(0), product);
    up = scaled_mm(x_fp8.rows, quantized_weight(1), product);
  }
  at::Tensor h;
  const QuantizedOperand h_fp8 =
      swiglu_operand(gate, up, {.rows = spec.forward.a, .transposed = for_dw}, fuse,
                     high_precision_dw ? &h : nullptr);
  if (for_dw) save(kH, h_fp8.transposed);
  if (high_precision_dw) saved[kH] = h;
  if (need_dx || need_dw) {
    saved[kGate] = gate;
    saved[kUp] = up;
  }
  const at::Tensor y = scaled_mm(h_fp8.rows, quantized_weight(2), product);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (saved[i].defined()) continue;
    const bool scale = i == kXScale || i == kHScale || (i >= kWeights && (i - kWeights) % 2 == 1);
    saved[i] = absent(x, i == kGate || i == kUp ? x.scalar_type() : scale ? at::kFloat : at::kByte);
  }
  return {with_leading_sizes_of(y, x), std::move(saved)};
}

MlpBackwardResult float8_swiglu_mlp_backward_kernel(
    const MlpBackwardArguments& in, std::string_view recipe, bool need_dx, at::ScalarType dw_dtype,
    bool fuse, const std::array<at::Tensor, 3>& accumulate_into) {
  const LinearSpec spec = resolve_for(recipe, in.dy.device());
  for (std::size_t i = 0; i < 3; ++i) {
    check_backward_arguments(in.dy, i == 2 ? in.h : in.x, i == 2 ? in.h_scale : in.x_scale, in.w[i],
                             in.w_scale[i], spec, kOperands[i]);
  }
  TORCH_CHECK(in.x.has_value() == in.h.has_value(),
              "float8_swiglu_mlp_backward: expected x and h together, got only ", in.x ? "x" : "h",
              "; all gradients of weights are computed, or none");
  const bool need_dw = in.x.has_value(), fp8_dw = need_dw && !spec.dw.high_precision();
  const OperandSpec both{.rows = spec.dx.a, .transposed = fp8_dw ? spec.dw.a : std::nullopt};
  const at::ScalarType dtype = in.dy.scalar_type();
  const auto transposed_weight = [&](std::size_t i) {
    return in.w_scale[i] ? from_bytes(kWeightScaleNames[i], in.w[i], *in.w_scale[i], *spec.dx.b)
                         : quantize_operand(
                               in.w[i], {.transposed = spec.dx.b, .amax = {.tensor = in.w_amax[i]}})
                               .transposed;
  };
  const auto dx_product = [&](const ScaledTensor& rows, std::size_t i,
                              const std::optional<at::Tensor>& into = std::nullopt) {
    return scaled_mm(rows, transposed_weight(i),
                     {.out_dtype = dtype,
                      .fast_accumulation = spec.dx.fast_accumulation,
                      .accumulate_into = into});
  };
  // dw = dyT . xT^T, by bytes or in high precision.
  const auto dw_product = [&](const ScaledTensor& dy_transposed, const at::Tensor& dy,
                              const at::Tensor& x, const std::optional<at::Tensor>& x_scale,
                              std::size_t i) {
    const std::optional<at::Tensor> into = if_defined(accumulate_into[i]);
    if (fp8_dw) {
      return scaled_mm(dy_transposed,
                       from_bytes(i == 2 ? "h_scale" : "x_scale", x, *x_scale, *spec.dw.b),
                       {.out_dtype = dw_dtype,
                        .fast_accumulation = spec.dw.fast_accumulation,
                        .accumulate_into = into});
    }
    return high_precision_dw(dy, x, dw_dtype, into);
  };
  std::array<at::Tensor, 3> dw;
  for (at::Tensor& each : dw) each = absent(in.dy, dw_dtype);

  at::Tensor dh;
  {
    const at::Tensor dy_MN = as_matrix(in.dy);
    const QuantizedOperand dy_fp8 = quantize_operand(dy_MN, both);
    dh = dx_product(dy_fp8.rows, 2);
    if (need_dw) dw[2] = dw_product(dy_fp8.transposed, dy_MN, *in.h, in.h_scale, 2);
  }
  at::Tensor dx = absent(in.dy, dtype);
  if (!need_dx && !need_dw) return {dx, dw[0], dw[1], dw[2]};
  std::array<at::Tensor, 2> written;
  std::array<QuantizedOperand, 2> gradients = swiglu_gradient_operands(
      dh, in.gate, in.up,
      {.rows = need_dx ? both.rows : std::nullopt, .transposed = both.transposed}, fuse,
      need_dw && !fp8_dw ? &written : nullptr);
  dh.reset();
  if (need_dx) {
    at::Tensor sum = dx_product(gradients[0].rows, 0);
    sum = dx_product(gradients[1].rows, 1, sum);
    dx = with_leading_sizes_of(sum, in.dy);
    gradients[0].rows = gradients[1].rows = {};  // their memory can hold dw
  }
  if (need_dw) {
    for (std::size_t i = 0; i < 2; ++i) {
      dw[i] = dw_product(gradients[i].transposed, written[i], *in.x, in.x_scale, i);
      gradients[i] = {};
    }
  }
  return {dx, dw[0], dw[1], dw[2]};
}

at::Tensor call_float8_swiglu_mlp(const at::Tensor& x, const at::Tensor& w_gate,
                                  const at::Tensor& w_up, const at::Tensor& w_down,
                                  std::string_view recipe, std::string_view keep_weight_transposed,
                                  bool fuse) {
  static const auto op =
      find_operator<decltype(call_float8_swiglu_mlp)>("octavo::float8_swiglu_mlp");
  return op.call(x, w_gate, w_up, w_down, recipe, keep_weight_transposed, fuse);
}

MlpForwardResult call_float8_swiglu_mlp_forward(const at::Tensor& x, const at::Tensor& w_gate,
                                                const at::Tensor& w_up, const at::Tensor& w_down,
                                                std::string_view recipe, bool need_dx, bool need_dw,
                                                bool keep_weight_transposed, bool fuse) {
  static const auto op =
      find_operator<decltype(call_float8_swiglu_mlp_forward)>("octavo::float8_swiglu_mlp_forward");
  return op.call(x, w_gate, w_up, w_down, recipe, need_dx, need_dw, keep_weight_transposed, fuse);
}

MlpBackwardResult call_float8_swiglu_mlp_backward(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
    const std::optional<at::Tensor>& x, const std::optional<at::Tensor>& x_scale,
    const std::optional<at::Tensor>& h, const std::optional<at::Tensor>& h_scale,
    const at::Tensor& w_gate, const std::optional<at::Tensor>& w_gate_scale, const at::Tensor& w_up,
    const std::optional<at::Tensor>& w_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>& w_down_scale, std::string_view recipe, bool need_dx,
    at::ScalarType dw_dtype, bool fuse) {
  static const auto op = find_operator<decltype(call_float8_swiglu_mlp_backward)>(
      "octavo::float8_swiglu_mlp_backward");
  return op.call(dy, gate, up, x, x_scale, h, h_scale, w_gate, w_gate_scale, w_up, w_up_scale,
                 w_down, w_down_scale, recipe, need_dx, dw_dtype, fuse);
}

void check_mlp_arguments(const at::Tensor& x, const at::Tensor& w_gate, const at::Tensor& w_up,
                         const at::Tensor& w_down) {
  std::size_t i = 0;
  for (const at::Tensor& w : {w_gate, w_up, w_down}) {
    check_forward_arguments(x, w, std::nullopt, {"float8_swiglu_mlp", "x", kOperands[i++].w});
    TORCH_CHECK(w.scalar_type() == w_gate.scalar_type(),
                "float8_swiglu_mlp: expected weights of one dtype, got ", w_gate.scalar_type(),
                " and ", w.scalar_type(), "; convert one of them");
  }
}

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("float8_swiglu_mlp", &mlp_kernel);
  m.impl("float8_swiglu_mlp_forward", &mlp_forward_kernel);
  m.impl("float8_swiglu_mlp_backward", &mlp_backward_kernel);
}
TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("float8_swiglu_mlp", &mlp_kernel);
  m.impl("float8_swiglu_mlp_forward", &mlp_forward_kernel);
  m.impl("float8_swiglu_mlp_backward", &mlp_backward_kernel);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor float8_swiglu_mlp(const at::Tensor& x, const at::Tensor& w_gate, const at::Tensor& w_up,
                             const at::Tensor& w_down, const Recipe& recipe,
                             const Float8SwigluMlpOptions& options) {
  const std::string text = recipe.to_string();
  bool recorded = options.input != nullptr;
  for (std::size_t i = 0; i < 3; ++i) {
    recorded = recorded || options.weights[i] || options.accumulate_into[i].defined() ||
               (options.weight_amaxes[i].defined() && ops::records_without_autocast(x));
  }
  if (recorded) {
    return ops::float8_swiglu_mlp_recorded(x, {w_gate, w_up, w_down}, text, options);
  }
  return ops::call_float8_swiglu_mlp(x, w_gate, w_up, w_down, text,
                                     ops::name(options.keep_weight_transposed), options.fuse);
}

}  // namespace octavo
