#include "octavo/ops/quantized_rms_norm.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "octavo/ops/below.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/operands.h"
#include "octavo/ops/rms_norm_ops.h"

namespace octavo::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A tensor of these sizes every element of which is one NaN of the device's.
at::Tensor without_values(const at::Tensor& like) {
  static std::mutex mutex;
  // Never destroyed: at exit the device may be gone before it.
  static auto* const nan = new std::map<std::pair<std::string, at::ScalarType>, at::Tensor>;
  const std::lock_guard lock(mutex);
  at::Tensor& one = (*nan)[{like.device().str(), like.scalar_type()}];
  if (!one.defined()) {
    one = at::full({1}, std::numeric_limits<double>::quiet_NaN(), like.options());
  }
  // A tensor of its own each time: autograd writes to it.
  return one.detach().expand(like.sizes());
}

// Outputs (h, y), or y alone where there is no residual; `out` gets y's layouts.
class RmsNormQuantized : public torch::autograd::Function<RmsNormQuantized> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& residual, const at::Tensor& w,
                               double eps, const OperandSpec& spec, bool keep_y,
                               QuantizedLayouts* out) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    RmsNormOperand made = rms_norm_operand(x, residual, w, eps, spec, keep_y);
    *out = layouts_of(made.operand);
    context->save_for_backward({residual ? made.h : x, w, made.rstd});
    // A gradient of h that nothing asked for is no matrix of zeros to read.
    context->set_materialize_grads(false);
    const at::Tensor y = keep_y ? made.y : without_values(x);
    if (residual) return {made.h, y};
    return {y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "quantized_rms_norm: second derivatives (create_graph) are not implemented");
    const RmsNormGradients made = rms_norm_gradients(*context, gradients);
    return {made.x, made.residual, made.w, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace
}  // namespace octavo::ops

namespace octavo {

QuantizedRmsNorm quantized_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                    const at::Tensor& w, double eps, const Recipe& recipe,
                                    bool need_dw) {
  TORCH_CHECK(
      ops::records_without_autocast(x),
      "quantized_rms_norm: expected a graph to be recorded, without autocast; call rms_norm()");
  ops::refuse_tangents("quantized_rms_norm", {x, residual.value_or(at::Tensor()), w});
  ops::check_input_argument(x, {"quantized_rms_norm"});
  const LinearSpec spec = ops::resolve_for(recipe.to_string(), x.device());
  const bool high_precision_dw = need_dw && spec.dw.high_precision();
  const OperandSpec operand{.rows = spec.forward.a,
                            .transposed = need_dw && !high_precision_dw ? spec.dw.b : std::nullopt};
  QuantizedRmsNorm result;
  const auto outputs = ops::RmsNormQuantized::apply(x, residual, w, eps, operand, high_precision_dw,
                                                    &result.quantized);
  result.h = residual ? outputs[0] : x;
  result.y = outputs.back();
  return result;
}

}  // namespace octavo
