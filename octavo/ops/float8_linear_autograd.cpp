// Autograd and autocast of float8_linear. The Function calls the _forward and _backward operators
// through the dispatcher, so tracers see them with everything they exchange.
#include <ATen/autocast_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/names.h"
#include "octavo/ops/recorded.h"

namespace octavo::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the caller gives besides the operands; undefined where it does not. Nothing of it is
// differentiable.
struct Given {
  QuantizedLayouts weight = {};
  QuantizedLayouts input = {};
  at::Tensor accumulate_into = {};
  at::Tensor weight_amax = {};
};

class Float8Linear : public torch::autograd::Function<Float8Linear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& bias, const std::string& recipe,
                            bool keep_weight_transposed, const Given& given) {
    const bool need_dx = x.requires_grad(), need_dw = w.requires_grad();
    const bool transposed_given = given.weight.transposed.defined();
    if (transposed_given) keep_weight_transposed = false;
    ForwardResult result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      const auto w_rows = if_defined(given.weight.rows),
                 w_rows_scale = if_defined(given.weight.rows_scale);
      if (given.input.rows.defined() || given.weight_amax.defined()) {
        result = float8_linear_forward_kernel(
            x, w, bias, recipe, need_dx, need_dw && !given.input.transposed.defined(),
            keep_weight_transposed, w_rows, w_rows_scale, if_defined(given.input.rows),
            if_defined(given.input.rows_scale), given.weight_amax);
      } else if (c10::impl::TorchDispatchModeTLS::any_modes_set()) {
        // A tracer sees two calls, so that linears of one x can share the first.
        const auto [x_rows, x_rows_scale, x_bytes, x_scale] =
            call_quantize_input(x, recipe, need_dw);
        result = call_float8_linear_forward(x, w, bias, recipe, need_dx, /*need_dw=*/false,
                                            keep_weight_transposed, w_rows, w_rows_scale, x_rows,
                                            x_rows_scale);
        std::get<1>(result) = x_bytes;
        std::get<2>(result) = x_scale;
      } else {
        result = call_float8_linear_forward(x, w, bias, recipe, need_dx, need_dw,
                                            keep_weight_transposed, w_rows, w_rows_scale, {}, {});
      }
    }
    auto& [y, x_bytes, x_scale, w_bytes, w_scale] = result;
    // Undefined: not wanted. Without a scale: high precision.
    at::Tensor saved_x, saved_x_scale;
    if (need_dw) {
      if (resolve_for(recipe, x.device()).dw.high_precision()) {
        saved_x = x;
      } else if (given.input.transposed.defined()) {
        saved_x = given.input.transposed;
        saved_x_scale = given.input.transposed_scale;
      } else {
        saved_x = x_bytes;
        saved_x_scale = x_scale;
      }
    }
    variable_list saved = {saved_x, saved_x_scale};
    if (need_dx) {
      save_weight(saved, w, &given.weight, keep_weight_transposed, w_bytes, w_scale);
    } else {
      saved.insert(saved.end(), {at::Tensor(), at::Tensor()});
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["recipe"] = recipe;
    ctx->saved_data["dw_dtype"] = static_cast<std::int64_t>(w.scalar_type());
    if (bias) ctx->saved_data["dbias_dtype"] = static_cast<std::int64_t>(bias->scalar_type());
    keep_accumulate_into(*ctx, 0, given.accumulate_into);
    keep_weight_amax(*ctx, 0, given.weight_amax);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor& dy = grads[0];
    variable_list saved = ctx->get_saved_variables();
    const bool has_bias = ctx->saved_data.count("dbias_dtype") != 0;
    // What this backward pass asks for may be less than what forward prepared for.
    const bool need_dx = ctx->needs_input_grad(0), need_dw = ctx->needs_input_grad(1);
    const bool need_dbias = has_bias && ctx->needs_input_grad(2);
    const auto dtype = [&](const char* key) {
      return static_cast<at::ScalarType>(ctx->saved_data[key].toInt());
    };
    const at::Tensor into = need_dw ? kept_accumulate_into(*ctx, 0) : at::Tensor();
    const at::Tensor amax = need_dx ? kept_weight_amax(*ctx, 0) : at::Tensor();
    const auto run = [&](const auto& operation, const auto&... more) {
      at::AutoDispatchBelowADInplaceOrView guard;
      return operation(
          dy, need_dw ? if_defined(saved[0]) : std::nullopt,
          need_dw ? if_defined(saved[1]) : std::nullopt,
          need_dx ? if_defined(saved[2]) : std::nullopt,
          need_dx ? if_defined(saved[3]) : std::nullopt, ctx->saved_data["recipe"].toStringRef(),
          dtype("dw_dtype"),
          need_dbias ? std::optional<at::ScalarType>(dtype("dbias_dtype")) : std::nullopt, more...);
    };
    BackwardResult result;
    if (into.defined() || amax.defined()) {
      if (into.defined()) refuse_create_graph("float8_linear");
      result = run(float8_linear_backward_kernel, if_defined(into),
                   /*dx_into=*/std::optional<at::Tensor>(), amax);
    } else {
      result = run(call_float8_linear_backward);
    }
    auto& [dx, dw, dbias] = result;
    const auto wanted = [](bool need, const at::Tensor& gradient) {
      return need ? first_derivative("float8_linear", gradient) : at::Tensor();
    };
    return {wanted(need_dx, dx),
            wanted(need_dw && !into.defined(), dw),
            wanted(need_dbias, dbias),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

at::Tensor float8_linear_autograd(const at::Tensor& x, const at::Tensor& w,
                                  const std::optional<at::Tensor>& bias, std::string_view recipe,
                                  std::string_view keep_weight_transposed,
                                  const std::optional<at::Tensor>& w_rows,
                                  const std::optional<at::Tensor>& w_rows_scale,
                                  const std::optional<at::Tensor>& w_transposed,
                                  const std::optional<at::Tensor>& w_transposed_scale) {
  refuse_tangents("float8_linear", {x, w, bias.value_or(at::Tensor())});
  const bool any = x.requires_grad() || w.requires_grad() || (bias && bias->requires_grad());
  if (!at::GradMode::is_enabled() || !any) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_float8_linear(x, w, bias, recipe, keep_weight_transposed, w_rows, w_rows_scale,
                              w_transposed, w_transposed_scale);
  }
  check_quantized("w_transposed", w, w_transposed, w_transposed_scale);
  const auto or_undefined = [](const std::optional<at::Tensor>& t) {
    return t ? *t : at::Tensor();
  };
  return Float8Linear::apply(
      x, w, bias, std::string(recipe),
      keeps_weight_transposed(x, w, parse_keep("keep_weight_transposed", keep_weight_transposed)),
      Given{.weight = {or_undefined(w_rows), or_undefined(w_rows_scale), or_undefined(w_transposed),
                       or_undefined(w_transposed_scale)}});
}

QuantizedResult quantize_input_autograd(const at::Tensor& x, std::string_view recipe,
                                        bool need_dw) {
  refuse_tangents("quantize_input", {x});
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_quantize_input(x, recipe, need_dw);
}

QuantizedResult quantize_weight_autograd(const at::Tensor& w, std::string_view recipe) {
  refuse_tangents("quantize_weight", {w});
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_quantize_weight(w, recipe);
}

ForwardResult forward_autograd(const at::Tensor& x, const at::Tensor& w,
                               const std::optional<at::Tensor>& bias, std::string_view recipe,
                               bool need_dx, bool need_dw, bool keep_weight_transposed,
                               const std::optional<at::Tensor>& w_rows,
                               const std::optional<at::Tensor>& w_rows_scale,
                               const std::optional<at::Tensor>& x_rows,
                               const std::optional<at::Tensor>& x_rows_scale) {
  refuse_tangents("float8_linear_forward", {x, w, bias.value_or(at::Tensor())});
  ForwardResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result =
        call_float8_linear_forward(x, w, bias, recipe, need_dx, need_dw, keep_weight_transposed,
                                   w_rows, w_rows_scale, x_rows, x_rows_scale);
  }
  if (requires_derivative({x, w, bias.value_or(at::Tensor())})) {
    std::get<0>(result) =
        without_derivative("float8_linear_forward (call float8_linear)", std::get<0>(result));
  }
  return result;
}

BackwardResult backward_autograd(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                 const std::optional<at::Tensor>& x_scale,
                                 const std::optional<at::Tensor>& w,
                                 const std::optional<at::Tensor>& w_scale, std::string_view recipe,
                                 at::ScalarType dw_dtype,
                                 std::optional<at::ScalarType> dbias_dtype) {
  refuse_tangents("float8_linear_backward",
                  {dy, x.value_or(at::Tensor()), w.value_or(at::Tensor())});
  BackwardResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_float8_linear_backward(dy, x, x_scale, w, w_scale, recipe, dw_dtype, dbias_dtype);
  }
  if (requires_derivative({dy, x.value_or(at::Tensor()), w.value_or(at::Tensor())})) {
    auto& [dx, dw, dbias] = result;
    const char* name = "float8_linear_backward";
    result = {without_derivative(name, dx), without_derivative(name, dw),
              without_derivative(name, dbias)};
  }
  return result;
}

// Only x takes the autocast dtype: w is quantised from its own type, and so w.grad keeps it.
template <at::DeviceType device>
at::Tensor float8_linear_autocast(const at::Tensor& x, const at::Tensor& w,
                                  const std::optional<at::Tensor>& bias, std::string_view recipe,
                                  std::string_view keep_weight_transposed,
                                  const std::optional<at::Tensor>& w_rows,
                                  const std::optional<at::Tensor>& w_rows_scale,
                                  const std::optional<at::Tensor>& w_transposed,
                                  const std::optional<at::Tensor>& w_transposed_scale) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return call_float8_linear(
      at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device), w, bias,
      recipe, keep_weight_transposed, w_rows, w_rows_scale, w_transposed, w_transposed_scale);
}

}  // namespace

bool keeps_weight_transposed(const at::Tensor& x, const at::Tensor& w, KeepWeightTransposed keep) {
  if (x.dim() == 0 || w.dim() == 0) return keeps_transposed(keep, {}, {});  // _forward refuses them
  return keeps_transposed(keep, leading_size(x).maybe_as_int(), w.sym_size(0).maybe_as_int());
}

at::Tensor float8_linear_recorded(const at::Tensor& x, const at::Tensor& w,
                                  const std::optional<at::Tensor>& bias, const std::string& recipe,
                                  const Float8LinearOptions& options) {
  refuse_tangents("float8_linear", {x, w, bias.value_or(at::Tensor())});
  TORCH_CHECK(
      at::GradMode::is_enabled(),
      "float8_linear: input and accumulate_into are for calls whose graph is recorded; leave "
      "them out otherwise");
  TORCH_CHECK(!at::autocast::is_autocast_enabled(x.device().type()),
              "float8_linear: input and accumulate_into are not for autocast; cast x and switch "
              "autocast off");
  check_accumulate_into("float8_linear", options.accumulate_into, w);
  const auto given = [](const QuantizedLayouts* layouts) {
    return layouts == nullptr ? QuantizedLayouts{} : *layouts;
  };
  return Float8Linear::apply(x, w, bias, recipe,
                             keeps_weight_transposed(x, w, options.keep_weight_transposed),
                             Given{.weight = given(options.weight),
                                   .input = given(options.input),
                                   .accumulate_into = options.accumulate_into,
                                   .weight_amax = options.weight_amax});
}

TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("float8_linear", &float8_linear_autograd);
  m.impl("float8_linear_forward", &forward_autograd);
  m.impl("float8_linear_backward", &backward_autograd);
  m.impl("quantize_input", &quantize_input_autograd);
  m.impl("quantize_weight", &quantize_weight_autograd);
}

TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("float8_linear", &float8_linear_autocast<at::kCPU>);
  m.impl("float8_linear_forward", &below_autocast<&call_float8_linear_forward>::call);
  m.impl("float8_linear_backward", &below_autocast<&call_float8_linear_backward>::call);
  m.impl("quantize_input", &below_autocast<&call_quantize_input>::call);
  m.impl("quantize_weight", &below_autocast<&call_quantize_weight>::call);
}

TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("float8_linear", &float8_linear_autocast<at::kCUDA>);
  m.impl("float8_linear_forward", &below_autocast<&call_float8_linear_forward>::call);
  m.impl("float8_linear_backward", &below_autocast<&call_float8_linear_backward>::call);
  m.impl("quantize_input", &below_autocast<&call_quantize_input>::call);
  m.impl("quantize_weight", &below_autocast<&call_quantize_weight>::call);
}

}  // namespace octavo::ops
