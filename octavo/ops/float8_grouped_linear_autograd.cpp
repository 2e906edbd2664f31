// Autograd and autocast of float8_grouped_linear. The Function calls the _forward and _backward
// operators through the dispatcher, so tracers see them with everything they exchange.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/float8_grouped_linear_ops.h"
#include "octavo/ops/names.h"
#include "octavo/ops/recorded.h"

namespace octavo::ops {
namespace {

// What the caller gives besides the operands; undefined where it does not. Nothing of it is
// differentiable.
struct GroupedGiven {
  QuantizedLayouts weight = {};
  at::Tensor accumulate_into = {};
};

class Float8GroupedLinear : public torch::autograd::Function<Float8GroupedLinear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w, const at::Tensor& offs, const std::string& recipe,
                            bool keep_weight_transposed, const GroupedGiven& given) {
    const bool need_dx = x.requires_grad(), need_dw = w.requires_grad();
    const bool transposed_given = given.weight.transposed.defined();
    if (transposed_given) keep_weight_transposed = false;
    GroupedForwardResult result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      result = call_float8_grouped_linear_forward(
          x, w, offs, recipe, need_dx, need_dw, keep_weight_transposed,
          if_defined(given.weight.rows), if_defined(given.weight.rows_scale));
    }
    auto& [y, x_bytes, x_scale, w_bytes, w_scale] = result;
    // Undefined: not wanted. Without a scale: high precision.
    at::Tensor saved_x, saved_x_scale;
    if (need_dw) {
      if (resolve_experts_for(recipe, x.device()).dw.high_precision()) {
        saved_x = x;
      } else {
        saved_x = x_bytes;
        saved_x_scale = x_scale;
      }
    }
    torch::autograd::variable_list saved = {saved_x, saved_x_scale};
    if (need_dx) {
      save_weight(saved, w, &given.weight, keep_weight_transposed, w_bytes, w_scale);
    } else {
      saved.insert(saved.end(), {at::Tensor(), at::Tensor()});
    }
    saved.push_back(offs);
    ctx->save_for_backward(saved);
    ctx->saved_data["recipe"] = recipe;
    ctx->saved_data["dw_dtype"] = static_cast<std::int64_t>(w.scalar_type());
    keep_accumulate_into(*ctx, 0, given.accumulate_into);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    // What this backward pass asks for may be less than what forward prepared for.
    const bool need_dx = ctx->needs_input_grad(0), need_dw = ctx->needs_input_grad(1);
    const auto given = [](bool need, const at::Tensor& tensor) {
      return need ? if_defined(tensor) : std::nullopt;
    };
    const at::Tensor into = need_dw ? kept_accumulate_into(*ctx, 0) : at::Tensor();
    const auto run = [&](const auto& operation, const auto&... more) {
      at::AutoDispatchBelowADInplaceOrView guard;
      return operation(grads[0], given(need_dw, saved[0]), given(need_dw, saved[1]),
                       given(need_dx, saved[2]), given(need_dx, saved[3]), saved[4],
                       ctx->saved_data["recipe"].toStringRef(),
                       static_cast<at::ScalarType>(ctx->saved_data["dw_dtype"].toInt()), more...);
    };
    GroupedBackwardResult result;
    if (into.defined()) {
      refuse_create_graph("float8_grouped_linear");
      result = run(float8_grouped_linear_backward_kernel, std::optional(into));
    } else {
      result = run(call_float8_grouped_linear_backward);
    }
    const auto wanted = [](bool need, const at::Tensor& gradient) {
      return need ? first_derivative("float8_grouped_linear", gradient) : at::Tensor();
    };
    return {wanted(need_dx, std::get<0>(result)),
            wanted(need_dw && !into.defined(), std::get<1>(result)),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

// Whether w's transposed layout is kept: as float8_linear, M >= N, all experts' tokens counted.
bool keeps_expert_weights(const at::Tensor& x, const at::Tensor& w, std::string_view word) {
  const KeepWeightTransposed keep = parse_keep("keep_weight_transposed", word);
  if (x.dim() != 2 || w.dim() != 3) return keeps_transposed(keep, {}, {});  // _forward refuses them
  return keeps_transposed(keep, x.sym_size(0).maybe_as_int(), w.sym_size(1).maybe_as_int());
}

at::Tensor grouped_linear_autograd(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs,
                                   std::string_view recipe, std::string_view keep_weight_transposed,
                                   const std::optional<at::Tensor>& w_rows,
                                   const std::optional<at::Tensor>& w_rows_scale,
                                   const std::optional<at::Tensor>& w_transposed,
                                   const std::optional<at::Tensor>& w_transposed_scale) {
  refuse_tangents("float8_grouped_linear", {x, w});
  if (!requires_derivative({x, w})) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_float8_grouped_linear(x, w, offs, recipe, keep_weight_transposed, w_rows,
                                      w_rows_scale, w_transposed, w_transposed_scale);
  }
  check_quantized_experts("w_transposed", w, w_transposed, w_transposed_scale);
  const auto or_undefined = [](const std::optional<at::Tensor>& t) {
    return t ? *t : at::Tensor();
  };
  return Float8GroupedLinear::apply(
      x, w, offs, std::string(recipe), keeps_expert_weights(x, w, keep_weight_transposed),
      GroupedGiven{.weight = {or_undefined(w_rows), or_undefined(w_rows_scale),
                              or_undefined(w_transposed), or_undefined(w_transposed_scale)}});
}

GroupedForwardResult grouped_forward_autograd(const at::Tensor& x, const at::Tensor& w,
                                              const at::Tensor& offs, std::string_view recipe,
                                              bool need_dx, bool need_dw,
                                              bool keep_weight_transposed,
                                              const std::optional<at::Tensor>& w_rows,
                                              const std::optional<at::Tensor>& w_rows_scale) {
  refuse_tangents("float8_grouped_linear_forward", {x, w});
  GroupedForwardResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_float8_grouped_linear_forward(x, w, offs, recipe, need_dx, need_dw,
                                                keep_weight_transposed, w_rows, w_rows_scale);
  }
  if (requires_derivative({x, w})) {
    std::get<0>(result) = without_derivative(
        "float8_grouped_linear_forward (call float8_grouped_linear)", std::get<0>(result));
  }
  return result;
}

GroupedBackwardResult grouped_backward_autograd(const at::Tensor& dy,
                                                const std::optional<at::Tensor>& x,
                                                const std::optional<at::Tensor>& x_scale,
                                                const std::optional<at::Tensor>& w,
                                                const std::optional<at::Tensor>& w_scale,
                                                const at::Tensor& offs, std::string_view recipe,
                                                at::ScalarType dw_dtype) {
  const at::Tensor none;
  refuse_tangents("float8_grouped_linear_backward", {dy, x.value_or(none), w.value_or(none)});
  GroupedBackwardResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result =
        call_float8_grouped_linear_backward(dy, x, x_scale, w, w_scale, offs, recipe, dw_dtype);
  }
  if (requires_derivative({dy, x.value_or(none), w.value_or(none)})) {
    const char* name = "float8_grouped_linear_backward";
    result = {without_derivative(name, std::get<0>(result)),
              without_derivative(name, std::get<1>(result))};
  }
  return result;
}

// Only x takes the autocast dtype: w is quantised from its own type, and so w.grad keeps it.
template <at::DeviceType device>
at::Tensor grouped_linear_autocast(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs,
                                   std::string_view recipe, std::string_view keep_weight_transposed,
                                   const std::optional<at::Tensor>& w_rows,
                                   const std::optional<at::Tensor>& w_rows_scale,
                                   const std::optional<at::Tensor>& w_transposed,
                                   const std::optional<at::Tensor>& w_transposed_scale) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return call_float8_grouped_linear(
      at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device), w, offs,
      recipe, keep_weight_transposed, w_rows, w_rows_scale, w_transposed, w_transposed_scale);
}

}  // namespace

at::Tensor float8_grouped_linear_recorded(const at::Tensor& x, const at::Tensor& w,
                                          const at::Tensor& offs, const std::string& recipe,
                                          const GroupedLinearOptions& options) {
  refuse_tangents("float8_grouped_linear", {x, w});
  TORCH_CHECK(
      records_without_autocast(x),
      "float8_grouped_linear: accumulate_into is for calls whose graph is recorded, without "
      "autocast; leave it out otherwise");
  check_accumulate_into("float8_grouped_linear", options.accumulate_into, w);
  return Float8GroupedLinear::apply(
      x, w, offs, recipe, keeps_expert_weights(x, w, name(options.keep_weight_transposed)),
      GroupedGiven{.weight = options.weight ? *options.weight : QuantizedLayouts{},
                   .accumulate_into = options.accumulate_into});
}

TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("float8_grouped_linear", &grouped_linear_autograd);
  m.impl("float8_grouped_linear_forward", &grouped_forward_autograd);
  m.impl("float8_grouped_linear_backward", &grouped_backward_autograd);
}

TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("float8_grouped_linear", &grouped_linear_autocast<at::kCPU>);
  m.impl("float8_grouped_linear_forward",
         &below_autocast<&call_float8_grouped_linear_forward>::call);
  m.impl("float8_grouped_linear_backward",
         &below_autocast<&call_float8_grouped_linear_backward>::call);
}

TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("float8_grouped_linear", &grouped_linear_autocast<at::kCUDA>);
  m.impl("float8_grouped_linear_forward",
         &below_autocast<&call_float8_grouped_linear_forward>::call);
  m.impl("float8_grouped_linear_backward",
         &below_autocast<&call_float8_grouped_linear_backward>::call);
}

}  // namespace octavo::ops
