#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "octavo/ops/float8_swiglu_mlp.h"

/// The operators behind float8_swiglu_mlp. Meaning of arguments and outputs: ops/library.cpp.
namespace octavo::ops {

using MlpForwardResult = std::tuple<at::Tensor, std::vector<at::Tensor>>;
using MlpBackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// What `saved` holds, in order; absent ones are empty (0).
enum MlpSaved : std::size_t {
  kGate,
  kUp,
  kX,  ///< bytes, transposed; x itself is no output
  kXScale,
  kH,  ///< bytes, transposed, or h itself where dw is in high precision
  kHScale,
  kWeights,  ///< bytes and scale, transposed, of w_gate, w_up and w_down
  kMlpSavedCount = kWeights + 6
};

at::Tensor call_float8_swiglu_mlp(const at::Tensor& x, const at::Tensor& w_gate,
                                  const at::Tensor& w_up, const at::Tensor& w_down,
                                  std::string_view recipe, std::string_view keep_weight_transposed,
                                  bool fuse);

MlpForwardResult call_float8_swiglu_mlp_forward(const at::Tensor& x, const at::Tensor& w_gate,
                                                const at::Tensor& w_up, const at::Tensor& w_down,
                                                std::string_view recipe, bool need_dx, bool need_dw,
                                                bool keep_weight_transposed, bool fuse);

MlpBackwardResult call_float8_swiglu_mlp_backward(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
    const std::optional<at::Tensor>& x, const std::optional<at::Tensor>& x_scale,
    const std::optional<at::Tensor>& h, const std::optional<at::Tensor>& h_scale,
    const at::Tensor& w_gate, const std::optional<at::Tensor>& w_gate_scale, const at::Tensor& w_up,
    const std::optional<at::Tensor>& w_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>& w_down_scale, std::string_view recipe, bool need_dx,
    at::ScalarType dw_dtype, bool fuse);

/// What is quantised already (null: not), or known of it.
struct MlpQuantized {
  const QuantizedLayouts* input = nullptr;
  std::array<const QuantizedLayouts*, 3> weights = {};
  std::array<at::Tensor, 3> weight_amaxes = {};  ///< of others, undefined: not known
};

/// The kernels of both, with what no operator takes: operands that are quantised already, and
/// gradients to add to (undefined: none).
MlpForwardResult float8_swiglu_mlp_forward_kernel(const at::Tensor& x,
                                                  const std::array<at::Tensor, 3>& w,
                                                  std::string_view recipe, bool need_dx,
                                                  bool need_dw, bool keep_weight_transposed,
                                                  bool fuse, const MlpQuantized& given);

struct MlpBackwardArguments {
  at::Tensor dy, gate, up;
  std::optional<at::Tensor> x, x_scale, h, h_scale;
  std::array<at::Tensor, 3> w;
  std::array<std::optional<at::Tensor>, 3> w_scale;
  std::array<at::Tensor, 3> w_amax = {};
};
MlpBackwardResult float8_swiglu_mlp_backward_kernel(
    const MlpBackwardArguments& arguments, std::string_view recipe, bool need_dx,
    at::ScalarType dw_dtype, bool fuse, const std::array<at::Tensor, 3>& accumulate_into);

/// float8_swiglu_mlp() recording its graph without the dispatcher, for its options `weights`,
/// `accumulate_into` and `weight_amaxes`.
at::Tensor float8_swiglu_mlp_recorded(const at::Tensor& x, const std::array<at::Tensor, 3>& w,
                                      const std::string& recipe,
                                      const Float8SwigluMlpOptions& options);

/// Argument checks that compare no sizes, shared by real and Meta kernels.
void check_mlp_arguments(const at::Tensor& x, const at::Tensor& w_gate, const at::Tensor& w_up,
                         const at::Tensor& w_down);

}  // namespace octavo::ops
