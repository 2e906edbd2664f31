#include "octavo/ops/float8_linears.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "octavo/ops/below.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/recorded.h"

namespace octavo::ops {
namespace {

std::string dw_dtype_key(std::size_t i) { return "dw_dtype" + std::to_string(i); }

// Saved: x, its scale, then w and its scale of each linear, as Float8Linear saves them.
class Float8Linears : public torch::autograd::Function<Float8Linears> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& x, const at::TensorList& weights,
                                                const std::vector<OneOfLinears>& linears,
                                                const std::string& recipe,
                                                const QuantizedLayouts* input) {
    const bool need_dx = x.requires_grad();
    bool need_dw = false;
    for (const at::Tensor& w : weights) need_dw = need_dw || w.requires_grad();
    at::AutoDispatchBelowADInplaceOrView guard;
    const QuantizedLayouts x_fp8 =
        input ? *input : quantize_input(x, Recipe::parse(recipe), need_dw);
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
          x, w, std::nullopt, recipe, need_dx, /*need_dw=*/false, keep, if_defined(given.rows),
          if_defined(given.rows_scale), x_fp8.rows, x_fp8.rows_scale, options.weight_amax);
      outputs.push_back(y);
      if (need_dx) {
        save_weight(saved, w, &given, keep, w_bytes, w_scale);
      } else {
        saved.insert(saved.end(), {at::Tensor(), at::Tensor()});
      }
      ctx->saved_data[dw_dtype_key(i)] = static_cast<std::int64_t>(w.scalar_type());
      keep_accumulate_into(*ctx, i, options.accumulate_into);
      keep_weight_amax(*ctx, i, options.weight_amax);
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
    torch::autograd::variable_list result(grads.size() + 4);
    at::AutoDispatchBelowADInplaceOrView guard;
    for (std::size_t i = grads.size(); i-- > 0;) {
      if (!grads[i].defined()) continue;
      const bool need_dw = ctx->needs_input_grad(i + 1);
      const at::Tensor into = need_dw ? kept_accumulate_into(*ctx, i) : at::Tensor();
      const at::Tensor &w = saved[2 + 2 * i], &w_scale = saved[3 + 2 * i];
      auto [part, dw, dbias] = float8_linear_backward_kernel(
          grads[i], need_dw ? if_defined(saved[0]) : std::nullopt,
          need_dw ? if_defined(saved[1]) : std::nullopt, need_dx ? if_defined(w) : std::nullopt,
          need_dx ? if_defined(w_scale) : std::nullopt, recipe,
          static_cast<at::ScalarType>(ctx->saved_data[dw_dtype_key(i)].toInt()),
          /*dbias_dtype=*/std::nullopt, if_defined(into), if_defined(dx),
          kept_weight_amax(*ctx, i));
      if (need_dx) dx = part;
      if (need_dw && !into.defined()) result[i + 1] = dw;
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
                                       const Recipe& recipe, const QuantizedLayouts* input) {
  TORCH_CHECK(
      ops::records_without_autocast(x),
      "float8_linears: expected a graph to be recorded, without autocast; call float8_linear()");
  std::vector<at::Tensor> weights;
  for (const OneOfLinears& one : linears) {
    ops::refuse_tangents("float8_linears", {x, one.w});
    weights.push_back(one.w);
  }
  return ops::Float8Linears::apply(x, at::TensorList(weights), linears, recipe.to_string(), input);
}

}  // namespace octavo
