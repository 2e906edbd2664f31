// Autograd, autocast and shapes of float8_experts. The Function calls the _forward and _backward
// operators through the dispatcher, so tracers see them with everything they exchange.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/float8_experts_ops.h"
#include "octavo/ops/float8_grouped_linear_ops.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/names.h"
#include "octavo/ops/recorded.h"
#include "octavo/quantize/quantize_grouped.h"

namespace octavo::ops {
namespace {

// Nothing of it is differentiable.
struct GivenToExperts {
  std::array<const QuantizedLayouts*, 2> weights = {};
  std::array<at::Tensor, 2> accumulate_into = {};
  bool any = false;
};

class Float8Experts : public torch::autograd::Function<Float8Experts> {
 public:
  // Inputs of autograd: x, the weights, offs; the saved tensors in the order of _backward's
  // arguments.
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w_gate_up, const at::Tensor& w_down,
                            const at::Tensor& offs, const std::string& recipe, bool keep, bool fuse,
                            const GivenToExperts& given) {
    const std::array<at::Tensor, 2> w = {w_gate_up, w_down};
    const bool need_dx = x.requires_grad();
    const bool need_dw = w_gate_up.requires_grad() || w_down.requires_grad();
    ExpertsForwardResult result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      result = given.any ? float8_experts_forward_kernel(x, w, offs, recipe, need_dx, need_dw, keep,
                                                         fuse, given.weights)
                         : call_float8_experts_forward(x, w_gate_up, w_down, offs, recipe, need_dx,
                                                       need_dw, keep, fuse);
    }
    const std::vector<at::Tensor>& made = std::get<1>(result);
    at::Tensor saved_x, x_scale, saved_h, h_scale;
    if (need_dw) {
      const bool high = resolve_experts_for(recipe, x.device()).dw.high_precision();
      saved_x = high ? x : made[kExpertsX];
      saved_h = made[kExpertsH];
      if (!high) x_scale = made[kExpertsXScale], h_scale = made[kExpertsHScale];
    }
    torch::autograd::variable_list saved = {made[kExpertsGateUp], saved_x, x_scale, saved_h,
                                            h_scale};
    for (std::size_t i = 0; i < 2; ++i) {
      save_weight(saved, w[i], given.weights[i], keep && (need_dx || i == 1),
                  made[kExpertsWeights + 2 * i], made[kExpertsWeights + 2 * i + 1]);
    }
    saved.push_back(offs);
    ctx->save_for_backward(saved);
    ctx->saved_data["recipe"] = recipe;
    ctx->saved_data["fuse"] = fuse;
    ctx->saved_data["dw_dtype"] = static_cast<std::int64_t>(w_down.scalar_type());
    for (std::size_t i = 0; i < 2; ++i) keep_accumulate_into(*ctx, i, given.accumulate_into[i]);
    return std::get<0>(result);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const bool need_dx = ctx->needs_input_grad(0);
    const bool need_dw = ctx->needs_input_grad(1) || ctx->needs_input_grad(2);
    const std::string& recipe = ctx->saved_data["recipe"].toStringRef();
    const bool fuse = ctx->saved_data["fuse"].toBool();
    const auto dw_dtype = static_cast<at::ScalarType>(ctx->saved_data["dw_dtype"].toInt());
    const auto given = [](bool need, const at::Tensor& tensor) {
      return need ? if_defined(tensor) : std::nullopt;
    };
    std::array<at::Tensor, 2> into;
    bool accumulates = false;
    for (std::size_t i = 0; need_dw && i < 2; ++i) {
      into[i] = kept_accumulate_into(*ctx, i);
      accumulates = accumulates || into[i].defined();
    }
    ExpertsBackwardResult result;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      if (accumulates) {
        refuse_create_graph("float8_experts");
        result = float8_experts_backward_kernel(
            {.dy = grads[0],
             .gate_up = saved[0],
             .x = given(need_dw, saved[1]),
             .x_scale = given(need_dw, saved[2]),
             .h = given(need_dw, saved[3]),
             .h_scale = given(need_dw, saved[4]),
             .w = {saved[5], saved[7]},
             .w_scale = {given(true, saved[6]), given(true, saved[8])},
             .offs = saved[9]},
            recipe, need_dx, dw_dtype, fuse, into);
      } else {
        result = call_float8_experts_backward(
            grads[0], saved[0], given(need_dw, saved[1]), given(need_dw, saved[2]),
            given(need_dw, saved[3]), given(need_dw, saved[4]), saved[5], given(true, saved[6]),
            saved[7], given(true, saved[8]), saved[9], recipe, need_dx, dw_dtype, fuse);
      }
    }
    const auto wanted = [&](std::size_t input, const at::Tensor& gradient) {
      if (!ctx->needs_input_grad(input)) return at::Tensor();
      if (input > 0 && into[input - 1].defined()) return at::Tensor();
      return first_derivative("float8_experts", gradient);
    };
    return {wanted(0, std::get<0>(result)),
            wanted(1, std::get<1>(result)),
            wanted(2, std::get<2>(result)),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

bool keeps_both_weights(const at::Tensor& x, const at::Tensor& w_gate_up, std::string_view word) {
  const KeepWeightTransposed keep = parse_keep("keep_weight_transposed", word);
  if (x.dim() != 2 || w_gate_up.dim() != 3) {
    return keeps_transposed(keep, {}, {});  // _forward refuses them
  }
  const c10::SymInt rows = 2 * x.sym_size(0);  // gate_up stacks two weights
  return keeps_transposed(keep, rows.maybe_as_int(), w_gate_up.sym_size(1).maybe_as_int());
}

at::Tensor experts_autograd(const at::Tensor& x, const at::Tensor& w_gate_up,
                            const at::Tensor& w_down, const at::Tensor& offs,
                            std::string_view recipe, std::string_view keep_weight_transposed,
                            bool fuse) {
  refuse_tangents("float8_experts", {x, w_gate_up, w_down});
  if (!requires_derivative({x, w_gate_up, w_down})) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_float8_experts(x, w_gate_up, w_down, offs, recipe, keep_weight_transposed, fuse);
  }
  return Float8Experts::apply(x, w_gate_up, w_down, offs, std::string(recipe),
                              keeps_both_weights(x, w_gate_up, keep_weight_transposed), fuse,
                              GivenToExperts{});
}

ExpertsForwardResult experts_forward_autograd(const at::Tensor& x, const at::Tensor& w_gate_up,
                                              const at::Tensor& w_down, const at::Tensor& offs,
                                              std::string_view recipe, bool need_dx, bool need_dw,
                                              bool keep_weight_transposed, bool fuse) {
  refuse_tangents("float8_experts_forward", {x, w_gate_up, w_down});
  ExpertsForwardResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_float8_experts_forward(x, w_gate_up, w_down, offs, recipe, need_dx, need_dw,
                                         keep_weight_transposed, fuse);
  }
  if (requires_derivative({x, w_gate_up, w_down})) {
    std::get<0>(result) =
        without_derivative("float8_experts_forward (call float8_experts)", std::get<0>(result));
  }
  return result;
}

ExpertsBackwardResult experts_backward_autograd(
    const at::Tensor& dy, const at::Tensor& gate_up, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& h,
    const std::optional<at::Tensor>& h_scale, const at::Tensor& w_gate_up,
    const std::optional<at::Tensor>& w_gate_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>& w_down_scale, const at::Tensor& offs, std::string_view recipe,
    bool need_dx, at::ScalarType dw_dtype, bool fuse) {
  const char* name = "float8_experts_backward";
  refuse_tangents(name, {dy, gate_up});
  ExpertsBackwardResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_float8_experts_backward(dy, gate_up, x, x_scale, h, h_scale, w_gate_up,
                                          w_gate_up_scale, w_down, w_down_scale, offs, recipe,
                                          need_dx, dw_dtype, fuse);
  }
  if (requires_derivative(
          {dy, gate_up, x.value_or(at::Tensor()), h.value_or(at::Tensor()), w_gate_up, w_down})) {
    auto& [dx, dw_gate_up, dw_down] = result;
    result = {without_derivative(name, dx), without_derivative(name, dw_gate_up),
              without_derivative(name, dw_down)};
  }
  return result;
}

// Only x takes the autocast dtype: weights are quantised from their own type.
template <at::DeviceType device>
at::Tensor experts_autocast(const at::Tensor& x, const at::Tensor& w_gate_up,
                            const at::Tensor& w_down, const at::Tensor& offs,
                            std::string_view recipe, std::string_view keep_weight_transposed,
                            bool fuse) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return call_float8_experts(
      at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device), w_gate_up,
      w_down, offs, recipe, keep_weight_transposed, fuse);
}

// Shapes, on symbolic sizes: nothing compares sizes.
at::Tensor experts_matrix(const at::Tensor& like, const c10::SymInt& rows,
                          const c10::SymInt& columns) {
  return at::empty_symint({rows, columns}, like.options());
}

at::Tensor experts_meta(const at::Tensor& x, const at::Tensor& w_gate_up, const at::Tensor& w_down,
                        const at::Tensor& offs, std::string_view recipe,
                        std::string_view keep_weight_transposed, bool) {
  resolve_experts_for(recipe, x.device());
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  check_experts_arguments(x, w_gate_up, w_down, offs);
  return experts_matrix(x, x.sym_size(0), w_down.sym_size(1));
}

ExpertsForwardResult experts_forward_meta(const at::Tensor& x, const at::Tensor& w_gate_up,
                                          const at::Tensor& w_down, const at::Tensor& offs,
                                          std::string_view recipe, bool need_dx, bool need_dw,
                                          bool keep, bool) {
  const LinearSpec spec = resolve_experts_for(recipe, x.device());
  check_experts_arguments(x, w_gate_up, w_down, offs);
  const c10::SymInt m = x.sym_size(0), experts = w_down.sym_size(0);
  const bool fp8_dw = need_dw && !spec.dw.high_precision();
  std::vector<at::Tensor> saved(kExpertsSavedCount);
  saved[kExpertsGateUp] = need_dx || need_dw ? experts_matrix(x, m, w_gate_up.sym_size(1))
                                             : nothing(x, x.scalar_type());
  // x and h transposed, each group aligned.
  const auto activation = [&](std::size_t at, const c10::SymInt& features) {
    if (!fp8_dw) {
      saved[at] = nothing(x, at::kByte);
      saved[at + 1] = nothing(x, at::kFloat);
      return;
    }
    const Granularity& granularity = spec.dw.b->granularity;
    const c10::SymInt columns = grouped_columns(m, experts, granularity);
    saved[at] = at::empty_symint({features, columns}, x.options().dtype(at::kByte));
    saved[at + 1] = empty_flat_grouped_scale_meta(x, granularity, experts, features, columns);
  };
  activation(kExpertsX, x.sym_size(1));
  activation(kExpertsH, w_down.sym_size(2));
  if (need_dw && !fp8_dw) saved[kExpertsH] = experts_matrix(x, m, w_down.sym_size(2));
  std::size_t at = kExpertsWeights;
  for (const at::Tensor& w : {w_gate_up, w_down}) {
    const bool kept = keep && (need_dx || (at != kExpertsWeights && need_dw));
    const c10::SymInt n = w.sym_size(1), k = w.sym_size(2);
    saved[at] = kept ? at::empty_symint({experts, k, n}, x.options().dtype(at::kByte))
                     : nothing(x, at::kByte);
    saved[at + 1] = kept ? empty_flat_expert_scale_meta(x, spec.dx.b->granularity, experts, k, n)
                         : nothing(x, at::kFloat);
    at += 2;
  }
  return {experts_matrix(x, m, w_down.sym_size(1)), saved};
}

ExpertsBackwardResult experts_backward_meta(
    const at::Tensor& dy, const at::Tensor& gate_up, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>& h,
    const std::optional<at::Tensor>&, const at::Tensor& w_gate_up,
    const std::optional<at::Tensor>& w_gate_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>&, const at::Tensor& offs, std::string_view recipe, bool need_dx,
    at::ScalarType dw_dtype, bool) {
  resolve_experts_for(recipe, dy.device());
  const at::Tensor none;
  check_one_device("float8_experts_backward",
                   {dy, gate_up, x.value_or(none), h.value_or(none), w_gate_up, w_down, offs});
  const c10::SymInt experts = offs.sym_size(0), n = dy.sym_size(1), both = gate_up.sym_size(1);
  const c10::SymInt d = w_gate_up.sym_size(w_gate_up_scale ? 1 : 2);
  const at::TensorOptions options = dy.options().dtype(dw_dtype);
  const auto weight = [&](const c10::SymInt& rows, const c10::SymInt& columns) {
    return x ? at::empty_symint({experts, rows, columns}, options) : nothing(dy, dw_dtype);
  };
  return {need_dx ? experts_matrix(dy, dy.sym_size(0), d) : nothing(dy, dy.scalar_type()),
          weight(both, d), weight(n, both / 2)};
}

}  // namespace

at::Tensor float8_experts_recorded(const at::Tensor& x, const std::array<at::Tensor, 2>& w,
                                   const at::Tensor& offs, const std::string& recipe,
                                   const Float8ExpertsOptions& options) {
  refuse_tangents("float8_experts", {x, w[0], w[1]});
  TORCH_CHECK(records_without_autocast(x),
              "float8_experts: weights and accumulate_into are for calls whose graph is recorded "
              "without autocast; leave them out otherwise");
  for (std::size_t i = 0; i < 2; ++i) {
    check_accumulate_into("float8_experts", options.accumulate_into[i], w[i]);
  }
  return Float8Experts::apply(
      x, w[0], w[1], offs, recipe,
      keeps_both_weights(x, w[0], name(options.keep_weight_transposed)), options.fuse,
      GivenToExperts{
          .weights = options.weights, .accumulate_into = options.accumulate_into, .any = true});
}

TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("float8_experts", &experts_autograd);
  m.impl("float8_experts_forward", &experts_forward_autograd);
  m.impl("float8_experts_backward", &experts_backward_autograd);
}
TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("float8_experts", &experts_meta);
  m.impl("float8_experts_forward", &experts_forward_meta);
  m.impl("float8_experts_backward", &experts_backward_meta);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("float8_experts", &experts_autocast<at::kCPU>);
  m.impl("float8_experts_forward", &below_autocast<&call_float8_experts_forward>::call);
  m.impl("float8_experts_backward", &below_autocast<&call_float8_experts_backward>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("float8_experts", &experts_autocast<at::kCUDA>);
  m.impl("float8_experts_forward", &below_autocast<&call_float8_experts_forward>::call);
  m.impl("float8_experts_backward", &below_autocast<&call_float8_experts_backward>::call);
}

}  // namespace octavo::ops
