#include "octavo/ops/float8_experts.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/gemm/scaled_grouped_mm.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/float8_experts_ops.h"
#include "octavo/ops/float8_grouped_linear_ops.h"
#include "octavo/ops/names.h"
#include "octavo/ops/scale_layout.h"
#include "octavo/ops/swiglu_operand.h"
#include "octavo/quantize/offsets.h"

namespace octavo::ops {
namespace {

constexpr OperandNames kExpertsOperands[2] = {{"float8_experts", "x", "w_gate_up"},
                                              {"float8_experts", "h", "w_down"}};
constexpr const char* kExpertsScaleNames[2] = {"w_gate_up_scale", "w_down_scale"};

void check_experts_sizes(const at::Tensor& x, const std::array<at::Tensor, 2>& w) {
  TORCH_CHECK(
      x.size(1) == w[0].size(2) && w[0].size(0) == w[1].size(0) && w[0].size(1) == 2 * w[1].size(2),
      "float8_experts: expected x (M, D), w_gate_up (E, 2F, D) and w_down (E, D', F), got ",
      x.sizes(), ", ", w[0].sizes(), " and ", w[1].sizes(),
      "; stack gate and up along the second dimension");
}

at::Tensor experts_kernel(const at::Tensor& x, const at::Tensor& w_gate_up,
                          const at::Tensor& w_down, const at::Tensor& offs, std::string_view recipe,
                          std::string_view keep_weight_transposed, bool fuse) {
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  return std::get<0>(call_float8_experts_forward(x, w_gate_up, w_down, offs, recipe,
                                                 /*need_dx=*/false, /*need_dw=*/false,
                                                 /*keep=*/false, fuse));
}

ExpertsForwardResult experts_forward_kernel(const at::Tensor& x, const at::Tensor& w_gate_up,
                                            const at::Tensor& w_down, const at::Tensor& offs,
                                            std::string_view recipe, bool need_dx, bool need_dw,
                                            bool keep_weight_transposed, bool fuse) {
  return float8_experts_forward_kernel(x, {w_gate_up, w_down}, offs, recipe, need_dx, need_dw,
                                       keep_weight_transposed, fuse, {});
}

ExpertsBackwardResult experts_backward_kernel(
    const at::Tensor& dy, const at::Tensor& gate_up, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& h,
    const std::optional<at::Tensor>& h_scale, const at::Tensor& w_gate_up,
    const std::optional<at::Tensor>& w_gate_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>& w_down_scale, const at::Tensor& offs, std::string_view recipe,
    bool need_dx, at::ScalarType dw_dtype, bool fuse) {
  return float8_experts_backward_kernel({.dy = dy,
                                         .gate_up = gate_up,
                                         .x = x,
                                         .x_scale = x_scale,
                                         .h = h,
                                         .h_scale = h_scale,
                                         .w = {w_gate_up, w_down},
                                         .w_scale = {w_gate_up_scale, w_down_scale},
                                         .offs = offs},
                                        recipe, need_dx, dw_dtype, fuse, {});
}

GroupedMatmulOptions grouped_product(const ProductSpec& product, at::ScalarType out_dtype) {
  return {.out_dtype = out_dtype, .fast_accumulation = product.fast_accumulation};
}

}  // namespace

ExpertsForwardResult float8_experts_forward_kernel(
    const at::Tensor& x, const std::array<at::Tensor, 2>& w, const at::Tensor& offs,
    std::string_view recipe, bool need_dx, bool need_dw, bool keep_weight_transposed, bool fuse,
    const std::array<const QuantizedLayouts*, 2>& given) {
  const LinearSpec spec = resolve_experts_for(recipe, x.device());
  check_experts_arguments(x, w[0], w[1], offs);
  check_experts_sizes(x, w);
  check_offsets("offs", offs, w[0].size(0), x.size(0), x.device());
  const bool high_precision_dw = need_dw && spec.dw.high_precision();
  const std::optional<LayoutSpec> for_dw =
      need_dw && !spec.dw.high_precision() ? spec.dw.b : std::nullopt;
  std::vector<at::Tensor> saved(kExpertsSavedCount);
  const auto save = [&](std::size_t at, const ScaledTensor& layout) {
    saved[at] = to_bytes(layout.data);
    saved[at + 1] = scale_bytes(layout);
  };
  // gate_up leads back to x, down to h, which every gradient but its own comes through.
  const auto quantized_weight = [&](std::size_t i) {
    const bool needed = i == 1 ? need_dx || need_dw : need_dx;
    const bool rows_given = given[i] && given[i]->rows.defined();
    const bool transposed =
        needed && keep_weight_transposed && !(given[i] && given[i]->transposed.defined());
    QuantizedOperand operand;
    if (!rows_given || transposed) {
      operand =
          quantize_expert_weights(w[i], {.rows = rows_given ? std::nullopt : spec.forward.b,
                                         .transposed = transposed ? spec.dx.b : std::nullopt});
    }
    if (rows_given) {
      operand.rows =
          from_bytes(kExpertsScaleNames[i], given[i]->rows, given[i]->rows_scale, *spec.forward.b);
    }
    if (transposed) save(kExpertsWeights + 2 * i, operand.transposed);
    return operand.rows;
  };
  const GroupedMatmulOptions product = grouped_product(spec.forward, x.scalar_type());

  at::Tensor gate_up;
  {
    const GroupedOperand x_fp8 =
        quantize_grouped_operand(x, offs, {.rows = spec.forward.a, .transposed = for_dw});
    if (for_dw) save(kExpertsX, x_fp8.transposed);
    gate_up = scaled_grouped_mm(x_fp8.rows, quantized_weight(0), x_fp8.offs, product);
  }
  at::Tensor h;
  const GroupedOperand h_fp8 =
      grouped_swiglu_operand(gate_up, offs, {.rows = spec.forward.a, .transposed = for_dw}, fuse,
                             high_precision_dw ? &h : nullptr);
  if (for_dw) save(kExpertsH, h_fp8.transposed);
  if (high_precision_dw) saved[kExpertsH] = h;
  if (need_dx || need_dw) saved[kExpertsGateUp] = gate_up;
  const at::Tensor y = scaled_grouped_mm(h_fp8.rows, quantized_weight(1), h_fp8.offs, product);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (saved[i].defined()) continue;
    const bool scale = i == kExpertsXScale || i == kExpertsHScale ||
                       (i >= kExpertsWeights && (i - kExpertsWeights) % 2 == 1);
    saved[i] = absent(x, i == kExpertsGateUp ? x.scalar_type() : scale ? at::kFloat : at::kByte);
  }
  return {y, std::move(saved)};
}

ExpertsBackwardResult float8_experts_backward_kernel(
    const ExpertsBackwardArguments& in, std::string_view recipe, bool need_dx,
    at::ScalarType dw_dtype, bool fuse, const std::array<at::Tensor, 2>& accumulate_into) {
  const LinearSpec spec = resolve_experts_for(recipe, in.dy.device());
  for (std::size_t i = 0; i < 2; ++i) {
    check_grouped_backward_arguments(in.dy, i == 1 ? in.h : in.x, i == 1 ? in.h_scale : in.x_scale,
                                     in.w[i], in.w_scale[i], in.offs, spec, kExpertsOperands[i]);
  }
  check_offsets("offs", in.offs, /*experts=*/-1, in.dy.size(0), in.dy.device());
  TORCH_CHECK(in.x.has_value() == in.h.has_value(),
              "float8_experts_backward: expected x and h together, got only ", in.x ? "x" : "h",
              "; all gradients of weights are computed, or none");
  const std::int64_t experts = in.offs.size(0);
  const bool need_dw = in.x.has_value(), fp8_dw = need_dw && !spec.dw.high_precision();
  const at::ScalarType dtype = in.dy.scalar_type();
  const auto transposed_weight = [&](std::size_t i) {
    return in.w_scale[i] ? from_bytes(kExpertsScaleNames[i], in.w[i], *in.w_scale[i], *spec.dx.b)
                         : quantize_expert_weights(in.w[i], {.transposed = spec.dx.b}).transposed;
  };
  const auto dx_product = [&](const GroupedOperand& dy, std::size_t i) {
    return scaled_grouped_mm(dy.rows, transposed_weight(i), dy.offs,
                             grouped_product(spec.dx, dtype));
  };
  // dw = dyT . xT^T of each group, by bytes or in high precision.
  const auto dw_product = [&](const GroupedOperand& dy_fp8, const at::Tensor& dy,
                              const at::Tensor& x, const std::optional<at::Tensor>& x_scale,
                              std::size_t i) {
    const std::optional<at::Tensor> into =
        accumulate_into[i].defined() ? std::optional<at::Tensor>(accumulate_into[i]) : std::nullopt;
    if (fp8_dw) {
      GroupedMatmulOptions options = grouped_product(spec.dw, dw_dtype);
      options.accumulate_into = into;
      return scaled_grouped_mm_k(
          dy_fp8.transposed,
          grouped_from_bytes(i == 1 ? "h_scale" : "x_scale", x, *x_scale, *spec.dw.b, experts),
          dy_fp8.offs_transposed, options);
    }
    const at::Tensor dw = grouped_mm_k(dy, x, in.offs, dw_dtype);
    return into ? into->add_(dw) : dw;
  };

  at::Tensor dw_gate_up = absent(in.dy, dw_dtype), dw_down = absent(in.dy, dw_dtype);
  at::Tensor dx = absent(in.dy, dtype);
  if (!need_dx && !need_dw) return {dx, dw_gate_up, dw_down};
  const OperandSpec both{.rows = spec.dx.a, .transposed = fp8_dw ? spec.dw.a : std::nullopt};
  at::Tensor dh;
  {
    const GroupedOperand dy_fp8 = quantize_grouped_operand(in.dy, in.offs, both);
    dh = dx_product(dy_fp8, 1);
    if (need_dw) dw_down = dw_product(dy_fp8, in.dy, *in.h, in.h_scale, 1);
  }
  at::Tensor written;
  GroupedOperand gradient = grouped_swiglu_gradient_operand(
      dh, in.gate_up, in.offs,
      {.rows = need_dx ? both.rows : std::nullopt, .transposed = both.transposed}, fuse,
      need_dw && !fp8_dw ? &written : nullptr);
  dh.reset();
  if (need_dx) {
    dx = dx_product(gradient, 0);
    gradient.rows = {};  // its memory can hold dw
  }
  if (need_dw) dw_gate_up = dw_product(gradient, written, *in.x, in.x_scale, 0);
  return {dx, dw_gate_up, dw_down};
}

at::Tensor call_float8_experts(const at::Tensor& x, const at::Tensor& w_gate_up,
                               const at::Tensor& w_down, const at::Tensor& offs,
                               std::string_view recipe, std::string_view keep_weight_transposed,
                               bool fuse) {
  static const auto op = find_operator<decltype(call_float8_experts)>("octavo::float8_experts");
  return op.call(x, w_gate_up, w_down, offs, recipe, keep_weight_transposed, fuse);
}

ExpertsForwardResult call_float8_experts_forward(const at::Tensor& x, const at::Tensor& w_gate_up,
                                                 const at::Tensor& w_down, const at::Tensor& offs,
                                                 std::string_view recipe, bool need_dx,
                                                 bool need_dw, bool keep_weight_transposed,
                                                 bool fuse) {
  static const auto op =
      find_operator<decltype(call_float8_experts_forward)>("octavo::float8_experts_forward");
  return op.call(x, w_gate_up, w_down, offs, recipe, need_dx, need_dw, keep_weight_transposed,
                 fuse);
}

ExpertsBackwardResult call_float8_experts_backward(
    const at::Tensor& dy, const at::Tensor& gate_up, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& h,
    const std::optional<at::Tensor>& h_scale, const at::Tensor& w_gate_up,
    const std::optional<at::Tensor>& w_gate_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>& w_down_scale, const at::Tensor& offs, std::string_view recipe,
    bool need_dx, at::ScalarType dw_dtype, bool fuse) {
  static const auto op =
      find_operator<decltype(call_float8_experts_backward)>("octavo::float8_experts_backward");
  return op.call(dy, gate_up, x, x_scale, h, h_scale, w_gate_up, w_gate_up_scale, w_down,
                 w_down_scale, offs, recipe, need_dx, dw_dtype, fuse);
}

void check_experts_arguments(const at::Tensor& x, const at::Tensor& w_gate_up,
                             const at::Tensor& w_down, const at::Tensor& offs) {
  check_grouped_forward_arguments(x, w_gate_up, offs, {"float8_experts", "x", "w_gate_up"});
  check_grouped_forward_arguments(x, w_down, offs, {"float8_experts", "x", "w_down"});
  TORCH_CHECK(w_gate_up.scalar_type() == w_down.scalar_type(),
              "float8_experts: expected weights of one dtype, got ", w_gate_up.scalar_type(),
              " and ", w_down.scalar_type(), "; convert one of them");
}

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("float8_experts", &experts_kernel);
  m.impl("float8_experts_forward", &experts_forward_kernel);
  m.impl("float8_experts_backward", &experts_backward_kernel);
}
TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("float8_experts", &experts_kernel);
  m.impl("float8_experts_forward", &experts_forward_kernel);
  m.impl("float8_experts_backward", &experts_backward_kernel);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor float8_experts(const at::Tensor& x, const at::Tensor& w_gate_up,
                          const at::Tensor& w_down, const at::Tensor& offs, const Recipe& recipe,
                          const Float8ExpertsOptions& options) {
  const std::string text = recipe.to_string();
  bool recorded = false;
  for (std::size_t i = 0; i < 2; ++i) {
    recorded = recorded || options.weights[i] || options.accumulate_into[i].defined();
  }
  if (recorded) {
    return ops::float8_experts_recorded(x, {w_gate_up, w_down}, offs, text, options);
  }
  return ops::call_float8_experts(x, w_gate_up, w_down, offs, text,
                                  ops::name(options.keep_weight_transposed), options.fuse);
}

}  // namespace octavo
