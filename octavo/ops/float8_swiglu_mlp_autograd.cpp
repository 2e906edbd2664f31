// Autograd, autocast and shapes of float8_swiglu_mlp. The Function calls the _forward and _backward
// operators through the dispatcher, so tracers see them with everything they exchange.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/float8_swiglu_mlp_ops.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/names.h"
#include "octavo/ops/recorded.h"

namespace octavo::ops {
namespace {

using Weights = std::array<at::Tensor, 3>;

// Nothing of it is differentiable.
struct GivenToMlp {
  MlpQuantized quantized = {};
  Weights accumulate_into = {};
  bool any = false;
};

class Float8SwigluMlp : public torch::autograd::Function<Float8SwigluMlp> {
 public:
  // Inputs of autograd: x and the weights; the saved tensors in the order of _backward's arguments.
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w_gate, const at::Tensor& w_up,
                            const at::Tensor& w_down, const std::string& recipe, bool keep,
                            bool fuse, const GivenToMlp& given) {
    const Weights w = {w_gate, w_up, w_down};
    const bool need_dx = x.requires_grad();
    const bool need_dw = w_gate.requires_grad() || w_up.requires_grad() || w_down.requires_grad();
    MlpForwardResult result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      result = given.any ? float8_swiglu_mlp_forward_kernel(x, w, recipe, need_dx, need_dw, keep,
                                                            fuse, given.quantized)
                         : call_float8_swiglu_mlp_forward(x, w_gate, w_up, w_down, recipe, need_dx,
                                                          need_dw, keep, fuse);
    }
    const std::vector<at::Tensor>& made = std::get<1>(result);
    at::Tensor saved_x, x_scale, saved_h, h_scale;
    if (need_dw) {
      const bool high = resolve_for(recipe, x.device()).dw.high_precision();
      saved_x = high ? x : made[kX];
      saved_h = made[kH];
      if (!high) x_scale = made[kXScale], h_scale = made[kHScale];
    }
    torch::autograd::variable_list saved = {made[kGate], made[kUp], saved_x,
                                            x_scale,     saved_h,   h_scale};
    for (std::size_t i = 0; i < 3; ++i) {
      save_weight(saved, w[i], given.quantized.weights[i], keep && (need_dx || i == 2),
                  made[kWeights + 2 * i], made[kWeights + 2 * i + 1]);
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["recipe"] = recipe;
    ctx->saved_data["fuse"] = fuse;
    ctx->saved_data["dw_dtype"] = static_cast<std::int64_t>(w_gate.scalar_type());
    for (std::size_t i = 0; i < 3; ++i) {
      keep_accumulate_into(*ctx, i, given.accumulate_into[i]);
      keep_weight_amax(*ctx, i, given.quantized.weight_amaxes[i]);
    }
    return std::get<0>(result);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const bool need_dx = ctx->needs_input_grad(0);
    const bool need_dw =
        ctx->needs_input_grad(1) || ctx->needs_input_grad(2) || ctx->needs_input_grad(3);
    const std::string& recipe = ctx->saved_data["recipe"].toStringRef();
    const bool fuse = ctx->saved_data["fuse"].toBool();
    const auto dw_dtype = static_cast<at::ScalarType>(ctx->saved_data["dw_dtype"].toInt());
    const auto given = [](bool need, const at::Tensor& tensor) {
      return need ? if_defined(tensor) : std::nullopt;
    };
    Weights into;
    bool accumulates = false;
    for (std::size_t i = 0; need_dw && i < 3; ++i) {
      into[i] = kept_accumulate_into(*ctx, i);
      accumulates = accumulates || into[i].defined();
    }
    Weights amaxes;
    bool amax_known = false;
    for (std::size_t i = 0; i < 3; ++i) {
      amaxes[i] = kept_weight_amax(*ctx, i);
      amax_known = amax_known || amaxes[i].defined();
    }
    MlpBackwardResult result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      if (accumulates) refuse_create_graph("float8_swiglu_mlp");
      if (accumulates || amax_known) {
        result = float8_swiglu_mlp_backward_kernel(
            {.dy = grads[0],
             .gate = saved[0],
             .up = saved[1],
             .x = given(need_dw, saved[2]),
             .x_scale = given(need_dw, saved[3]),
             .h = given(need_dw, saved[4]),
             .h_scale = given(need_dw, saved[5]),
             .w = {saved[6], saved[8], saved[10]},
             .w_scale = {given(true, saved[7]), given(true, saved[9]), given(true, saved[11])},
             .w_amax = amaxes},
            recipe, need_dx, dw_dtype, fuse, into);
      } else {
        result = call_float8_swiglu_mlp_backward(
            grads[0], saved[0], saved[1], given(need_dw, saved[2]), given(need_dw, saved[3]),
            given(need_dw, saved[4]), given(need_dw, saved[5]), saved[6], given(true, saved[7]),
            saved[8], given(true, saved[9]), saved[10], given(true, saved[11]), recipe, need_dx,
            dw_dtype, fuse);
      }
    }
    const auto& [dx, dw_gate, dw_up, dw_down] = result;
    const auto wanted = [&](int input, const at::Tensor& gradient) {
      if (!ctx->needs_input_grad(static_cast<std::size_t>(input))) return at::Tensor();
      if (input > 0 && into[static_cast<std::size_t>(input - 1)].defined()) return at::Tensor();
      return first_derivative("float8_swiglu_mlp", gradient);
    };
    return {wanted(0, dx), wanted(1, dw_gate), wanted(2, dw_up), wanted(3, dw_down),
            at::Tensor(),  at::Tensor(),       at::Tensor(),     at::Tensor()};
  }
};

bool keeps_mlp_weights(const at::Tensor& x, const at::Tensor& w_gate, std::string_view word) {
  const KeepWeightTransposed keep = parse_keep("keep_weight_transposed", word);
  if (x.dim() == 0 || w_gate.dim() == 0) {
    return keeps_transposed(keep, {}, {});  // _forward refuses them
  }
  const c10::SymInt rows = 2 * leading_size(x);
  return keeps_transposed(keep, rows.maybe_as_int(), w_gate.sym_size(0).maybe_as_int());
}

at::Tensor mlp_autograd(const at::Tensor& x, const at::Tensor& w_gate, const at::Tensor& w_up,
                        const at::Tensor& w_down, std::string_view recipe,
                        std::string_view keep_weight_transposed, bool fuse) {
  refuse_tangents("float8_swiglu_mlp", {x, w_gate, w_up, w_down});
  if (!requires_derivative({x, w_gate, w_up, w_down})) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_float8_swiglu_mlp(x, w_gate, w_up, w_down, recipe, keep_weight_transposed, fuse);
  }
  return Float8SwigluMlp::apply(x, w_gate, w_up, w_down, std::string(recipe),
                                keeps_mlp_weights(x, w_gate, keep_weight_transposed), fuse,
                                GivenToMlp{});
}

MlpForwardResult mlp_forward_autograd(const at::Tensor& x, const at::Tensor& w_gate,
                                      const at::Tensor& w_up, const at::Tensor& w_down,
                                      std::string_view recipe, bool need_dx, bool need_dw,
                                      bool keep_weight_transposed, bool fuse) {
  refuse_tangents("float8_swiglu_mlp_forward", {x, w_gate, w_up, w_down});
  MlpForwardResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_float8_swiglu_mlp_forward(x, w_gate, w_up, w_down, recipe, need_dx, need_dw,
                                            keep_weight_transposed, fuse);
  }
  if (requires_derivative({x, w_gate, w_up, w_down})) {
    std::get<0>(result) = without_derivative("float8_swiglu_mlp_forward (call float8_swiglu_mlp)",
                                             std::get<0>(result));
  }
  return result;
}

MlpBackwardResult mlp_backward_autograd(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
    const std::optional<at::Tensor>& x, const std::optional<at::Tensor>& x_scale,
    const std::optional<at::Tensor>& h, const std::optional<at::Tensor>& h_scale,
    const at::Tensor& w_gate, const std::optional<at::Tensor>& w_gate_scale, const at::Tensor& w_up,
    const std::optional<at::Tensor>& w_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>& w_down_scale, std::string_view recipe, bool need_dx,
    at::ScalarType dw_dtype, bool fuse) {
  const char* name = "float8_swiglu_mlp_backward";
  refuse_tangents(name, {dy, gate, up});
  MlpBackwardResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_float8_swiglu_mlp_backward(dy, gate, up, x, x_scale, h, h_scale, w_gate,
                                             w_gate_scale, w_up, w_up_scale, w_down, w_down_scale,
                                             recipe, need_dx, dw_dtype, fuse);
  }
  if (requires_derivative({dy, gate, up, x.value_or(at::Tensor()), h.value_or(at::Tensor()), w_gate,
                           w_up, w_down})) {
    auto& [dx, dw_gate, dw_up, dw_down] = result;
    result = {without_derivative(name, dx), without_derivative(name, dw_gate),
              without_derivative(name, dw_up), without_derivative(name, dw_down)};
  }
  return result;
}

// Only x takes the autocast dtype: weights are quantised from their own type.
template <at::DeviceType device>
at::Tensor mlp_autocast(const at::Tensor& x, const at::Tensor& w_gate, const at::Tensor& w_up,
                        const at::Tensor& w_down, std::string_view recipe,
                        std::string_view keep_weight_transposed, bool fuse) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return call_float8_swiglu_mlp(
      at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device), w_gate, w_up,
      w_down, recipe, keep_weight_transposed, fuse);
}

// Shapes, on symbolic sizes: nothing compares sizes.
at::Tensor mlp_meta(const at::Tensor& x, const at::Tensor& w_gate, const at::Tensor& w_up,
                    const at::Tensor& w_down, std::string_view recipe,
                    std::string_view keep_weight_transposed, bool) {
  resolve_for(recipe, x.device());
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  check_mlp_arguments(x, w_gate, w_up, w_down);
  return empty_like_with_columns(x, w_down.sym_size(0));
}

MlpForwardResult mlp_forward_meta(const at::Tensor& x, const at::Tensor& w_gate,
                                  const at::Tensor& w_up, const at::Tensor& w_down,
                                  std::string_view recipe, bool need_dx, bool need_dw, bool keep,
                                  bool) {
  const LinearSpec spec = resolve_for(recipe, x.device());
  check_mlp_arguments(x, w_gate, w_up, w_down);
  const c10::SymInt m = leading_size(x), f = w_gate.sym_size(0);
  const bool fp8_dw = need_dw && !spec.dw.high_precision();
  const auto bytes = [&](bool wanted, const c10::SymInt& rows, const c10::SymInt& columns) {
    return wanted ? at::empty_symint({rows, columns}, x.options().dtype(at::kByte))
                  : nothing(x, at::kByte);
  };
  const auto scale = [&](bool wanted, const std::optional<LayoutSpec>& layout,
                         const c10::SymInt& rows, const c10::SymInt& columns) {
    return wanted ? empty_flat_scale_meta(x, layout->granularity, rows, columns)
                  : nothing(x, at::kFloat);
  };
  const auto activation = [&] {
    return need_dx || need_dw ? at::empty_symint({m, f}, x.options()) : nothing(x, x.scalar_type());
  };
  const c10::SymInt d = x.sym_size(-1);
  std::vector<at::Tensor> saved = {activation(), activation(), bytes(fp8_dw, d, m),
                                   scale(fp8_dw, spec.dw.b, d, m)};
  saved.push_back(need_dw && !fp8_dw ? at::empty_symint({m, f}, x.options()) : bytes(fp8_dw, f, m));
  saved.push_back(scale(fp8_dw, spec.dw.b, f, m));
  int i = 0;
  for (const at::Tensor& w : {w_gate, w_up, w_down}) {
    const bool kept = keep && (need_dx || (i++ == 2 && need_dw));
    const c10::SymInt n = w.sym_size(0), k = w.sym_size(1);
    saved.push_back(bytes(kept, k, n));
    saved.push_back(scale(kept, spec.dx.b, k, n));
  }
  return {empty_like_with_columns(x, w_down.sym_size(0)), saved};
}

MlpBackwardResult mlp_backward_meta(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
    const std::optional<at::Tensor>& x, const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>& h, const std::optional<at::Tensor>&, const at::Tensor& w_gate,
    const std::optional<at::Tensor>& w_gate_scale, const at::Tensor& w_up,
    const std::optional<at::Tensor>&, const at::Tensor& w_down, const std::optional<at::Tensor>&,
    std::string_view recipe, bool need_dx, at::ScalarType dw_dtype, bool) {
  resolve_for(recipe, dy.device());
  const at::Tensor none;
  check_one_device("float8_swiglu_mlp_backward",
                   {dy, gate, up, x.value_or(none), h.value_or(none), w_gate, w_up, w_down});
  const c10::SymInt f = gate.sym_size(-1), n = dy.sym_size(-1);
  const c10::SymInt d = w_gate.sym_size(w_gate_scale ? 0 : 1);
  const at::TensorOptions options = dy.options().dtype(dw_dtype);
  const auto weight = [&](const c10::SymInt& rows, const c10::SymInt& columns) {
    return x ? at::empty_symint({rows, columns}, options) : nothing(dy, dw_dtype);
  };
  return {need_dx ? empty_like_with_columns(dy, d) : nothing(dy, dy.scalar_type()), weight(f, d),
          weight(f, d), weight(n, f)};
}

}  // namespace

at::Tensor float8_swiglu_mlp_recorded(const at::Tensor& x, const std::array<at::Tensor, 3>& w,
                                      const std::string& recipe,
                                      const Float8SwigluMlpOptions& options) {
  refuse_tangents("float8_swiglu_mlp", {x, w[0], w[1], w[2]});
  TORCH_CHECK(
      records_without_autocast(x),
      "float8_swiglu_mlp: input, weights and accumulate_into are for calls whose graph is recorded "
      "without autocast; leave them out otherwise");
  for (std::size_t i = 0; i < 3; ++i) {
    check_accumulate_into("float8_swiglu_mlp", options.accumulate_into[i], w[i]);
  }
  return Float8SwigluMlp::apply(x, w[0], w[1], w[2], recipe,
                                keeps_mlp_weights(x, w[0], name(options.keep_weight_transposed)),
                                options.fuse,
                                GivenToMlp{.quantized = {.input = options.input,
                                                         .weights = options.weights,
                                                         .weight_amaxes = options.weight_amaxes},
                                           .accumulate_into = options.accumulate_into,
                                           .any = true});
}

TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("float8_swiglu_mlp", &mlp_autograd);
  m.impl("float8_swiglu_mlp_forward", &mlp_forward_autograd);
  m.impl("float8_swiglu_mlp_backward", &mlp_backward_autograd);
}
TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("float8_swiglu_mlp", &mlp_meta);
  m.impl("float8_swiglu_mlp_forward", &mlp_forward_meta);
  m.impl("float8_swiglu_mlp_backward", &mlp_backward_meta);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("float8_swiglu_mlp", &mlp_autocast<at::kCPU>);
  m.impl("float8_swiglu_mlp_forward", &below_autocast<&call_float8_swiglu_mlp_forward>::call);
  m.impl("float8_swiglu_mlp_backward", &below_autocast<&call_float8_swiglu_mlp_backward>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("float8_swiglu_mlp", &mlp_autocast<at::kCUDA>);
  m.impl("float8_swiglu_mlp_forward", &below_autocast<&call_float8_swiglu_mlp_forward>::call);
  m.impl("float8_swiglu_mlp_backward", &below_autocast<&call_float8_swiglu_mlp_backward>::call);
}

}  // namespace octavo::ops
