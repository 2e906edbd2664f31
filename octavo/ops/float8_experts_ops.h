#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "octavo/ops/float8_experts.h"

/// The operators behind float8_experts. Meaning of arguments and outputs: ops/library.cpp.
namespace octavo::ops {

using ExpertsForwardResult = std::tuple<at::Tensor, std::vector<at::Tensor>>;
using ExpertsBackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// What `saved` holds, in order; absent ones are empty (0).
enum ExpertsSaved : std::size_t {
  kExpertsGateUp,
  kExpertsX,  ///< bytes, transposed; x itself is no output
  kExpertsXScale,
  kExpertsH,  ///< bytes, transposed, or h itself where dw is in high precision
  kExpertsHScale,
  kExpertsWeights,  ///< bytes and scale, transposed, of w_gate_up and w_down
  kExpertsSavedCount = kExpertsWeights + 4
};

at::Tensor call_float8_experts(const at::Tensor& x, const at::Tensor& w_gate_up,
                               const at::Tensor& w_down, const at::Tensor& offs,
                               std::string_view recipe, std::string_view keep_weight_transposed,
                               bool fuse);

ExpertsForwardResult call_float8_experts_forward(const at::Tensor& x, const at::Tensor& w_gate_up,
                                                 const at::Tensor& w_down, const at::Tensor& offs,
                                                 std::string_view recipe, bool need_dx,
                                                 bool need_dw, bool keep_weight_transposed,
                                                 bool fuse);

ExpertsBackwardResult call_float8_experts_backward(
    const at::Tensor& dy, const at::Tensor& gate_up, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& h,
    const std::optional<at::Tensor>& h_scale, const at::Tensor& w_gate_up,
    const std::optional<at::Tensor>& w_gate_up_scale, const at::Tensor& w_down,
    const std::optional<at::Tensor>& w_down_scale, const at::Tensor& offs, std::string_view recipe,
    bool need_dx, at::ScalarType dw_dtype, bool fuse);

/// The kernels of both, with what no operator takes: weights that are quantised already, and
/// gradients to add to (undefined: none).
ExpertsForwardResult float8_experts_forward_kernel(
    const at::Tensor& x, const std::array<at::Tensor, 2>& w, const at::Tensor& offs,
    std::string_view recipe, bool need_dx, bool need_dw, bool keep_weight_transposed, bool fuse,
    const std::array<const QuantizedLayouts*, 2>& given);

struct ExpertsBackwardArguments {
  at::Tensor dy, gate_up;
  std::optional<at::Tensor> x, x_scale, h, h_scale;
  std::array<at::Tensor, 2> w;
  std::array<std::optional<at::Tensor>, 2> w_scale;
  at::Tensor offs;
};
ExpertsBackwardResult float8_experts_backward_kernel(
    const ExpertsBackwardArguments& arguments, std::string_view recipe, bool need_dx,
    at::ScalarType dw_dtype, bool fuse, const std::array<at::Tensor, 2>& accumulate_into);

/// float8_experts() recording its graph without the dispatcher, for its options `weights` and
/// `accumulate_into`.
at::Tensor float8_experts_recorded(const at::Tensor& x, const std::array<at::Tensor, 2>& w,
                                   const at::Tensor& offs, const std::string& recipe,
                                   const Float8ExpertsOptions& options);

/// Argument checks that compare no sizes, shared by real and Meta kernels.
void check_experts_arguments(const at::Tensor& x, const at::Tensor& w_gate_up,
                             const at::Tensor& w_down, const at::Tensor& offs);

}  // namespace octavo::ops
