#include "octavo/ops/float8_linears.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "octavo/ops/below.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/names.h"

namespace octavo::ops {
namespace {

std::optional<at::Tensor> unless_undefined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

std::string key_of(const char* what, std::size_t i) { return what + std::to_string(i); }

// Saved: x, its scale, then w and its scale of each linear, as Float8Linear saves them.
class Float8Linears : public torch::autograd::Function<Float8Linears> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& x, const at::TensorList& weights,
                                                const std::vector<OneOfLinears>& linears,
                                                const std::string& recipe) {
    const bool need_dx = x.requires_grad();
    bool need_dw = false;
    for (const at::Tensor& w : weights) need_dw = need_dw || w.requires_grad();
    at::AutoDispatchBelowADInplaceOrView guard;
    const QuantizedLayouts x_fp8 = quantize_input(x, Recipe::parse(recipe), need_dw);
    torch::autograd::variable_list outputs, saved;
    if (!need_dw) {
      saved = {at::Tensor(), at::Tensor()};
    } else if (resolve_for(recipe, x.device()).dw.high_precision()) {
      saved = {x, at::Tensor()};
    } else {
      saved = {x_fp8.transposed, x_fp8.transposed_scale};
    }
    for (std::size_t i = 0; i < linears.size(); ++i) {
      const Float8LinearOptions& options = linears[i].options;
      const at::Tensor& w = weights[i];
      const QuantizedLayouts given = options.weight ? *options.weight : QuantizedLayouts{};
      const bool keep = !given.transposed.defined() &&
                        keeps_weight_transposed(x, w, options.keep_weight_transposed);
      auto [y, x_bytes, x_scale, w_bytes, w_scale] = float8_linear_forward_kernel(
          x, w, std::nullopt, recipe, need_dx, /*need_dw=*/false, keep,
          unless_undefined(given.rows), unless_undefined(given.rows_scale), x_fp8.rows,
          x_fp8.rows_scale);
      outputs.push_back(y);
      if (!need_dx) {
        saved.insert(saved.end(), {at::Tensor(), at::Tensor()});
      } else if (given.transposed.defined()) {
        saved.insert(saved.end(), {given.transposed, given.transposed_scale});
      } else if (keep) {
        saved.insert(saved.end(), {w_bytes, w_scale});
      } else {
        saved.insert(saved.end(), {w, at::Tensor()});
      }
      ctx->saved_data[key_of("dw_dtype", i)] = static_cast<std::int64_t>(w.scalar_type());
      // Not save_for_backward: that is for tensors nobody writes to between the passes.
      if (options.accumulate_into.defined()) {
        ctx->saved_data[key_of("accumulate_into", i)] = options.accumulate_into;
      }
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["recipe"] = recipe;
    // A result that nobody used has no gradient, rather than one of zeros.
    ctx->set_materialize_grads(false);
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "float8_linears: second derivatives (create_graph) are not implemented");
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const bool need_dx = ctx->needs_input_grad(0);
    const std::string& recipe = ctx->saved_data["recipe"].toStringRef();
    at::Tensor dx;
    torch::autograd::variable_list result(grads.size() + 3);
    at::AutoDispatchBelowADInplaceOrView guard;
    for (std::size_t i = grads.size(); i-- > 0;) {
      if (!grads[i].defined()) continue;
      const bool need_dw = ctx->needs_input_grad(i + 1);
      const auto into = ctx->saved_data.find(key_of("accumulate_into", i));
      const bool accumulates = need_dw && into != ctx->saved_data.end();
      const at::Tensor &w = saved[2 + 2 * i], &w_scale = saved[3 + 2 * i];
      auto [part, dw, dbias] = float8_linear_backward_kernel(
          grads[i], need_dw ? unless_undefined(saved[0]) : std::nullopt,
          need_dw ? unless_undefined(saved[1]) : std::nullopt,
          need_dx ? unless_undefined(w) : std::nullopt,
          need_dx ? unless_undefined(w_scale) : std::nullopt, recipe,
          static_cast<at::ScalarType>(ctx->saved_data[key_of("dw_dtype", i)].toInt()),
          /*dbias_dtype=*/std::nullopt,
          accumulates ? std::optional<at::Tensor>(into->second.toTensor()) : std::nullopt,
          unless_undefined(dx));
      if (need_dx) dx = part;
      if (need_dw && !accumulates) result[i + 1] = dw;
    }
    result[0] = dx;
    return result;
  }
};

}  // namespace
}  // namespace octavo::ops

namespace octavo {

std::vector<at::Tensor> float8_linears(const at::Tensor& x,
                                       const std::vector<OneOfLinears>& linears,
                                       const Recipe& recipe) {
  TORCH_CHECK(
      at::GradMode::is_enabled() && !at::autocast::is_autocast_enabled(x.device().type()),
      "float8_linears: expected a graph to be recorded, without autocast; call float8_linear()");
  std::vector<at::Tensor> weights;
  for (const OneOfLinears& one : linears) {
    ops::refuse_tangents("float8_linears", {x, one.w});
    weights.push_back(one.w);
  }
  return ops::Float8Linears::apply(x, at::TensorList(weights), linears, recipe.to_string());
}

}  // namespace octavo
