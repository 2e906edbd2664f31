#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "octavo/ops/float8_linear.h"

/// What the autograd Functions of FP8 linears do alike: dense, by groups, and several as one.
/// `operation` names the operator in errors.
namespace octavo::ops {

/// `tensor`, or nothing where it is undefined.
std::optional<at::Tensor> if_defined(const at::Tensor& tensor);

/// Whether w's transposed layout is kept for backward: as `keep` says, and for kAuto where rows >=
/// features. Without one of them (symbolic sizes) it is kept, so that one graph serves every
/// length.
bool keeps_transposed(KeepWeightTransposed keep, const std::optional<std::int64_t>& rows,
                      const std::optional<std::int64_t>& features);

/// Appends what backward multiplies by, and its scale: the transposed layout of `given` (which may
/// be null), or the one forward made where it was `kept`, or w itself without a scale.
void save_weight(torch::autograd::variable_list& saved, const at::Tensor& w,
                 const QuantizedLayouts* given, bool kept, const at::Tensor& bytes,
                 const at::Tensor& scale);

/// Throws unless `into`, if it is defined, can hold the gradient of w, which requires one.
void check_accumulate_into(const char* operation, const at::Tensor& into, const at::Tensor& w);

/// Keeps the i-th weight's gradient that backward adds to; an undefined one is none. Not by
/// save_for_backward: that is for tensors nobody writes to between the passes.
void keep_accumulate_into(torch::autograd::AutogradContext& ctx, std::size_t i,
                          const at::Tensor& into);

/// What keep_accumulate_into() kept, undefined where that was nothing.
at::Tensor kept_accumulate_into(torch::autograd::AutogradContext& ctx, std::size_t i);

/// The same for the i-th weight's amax (Float8LinearOptions::weight_amax): memory that may be
/// written with the weight, for a later one.
void keep_weight_amax(torch::autograd::AutogradContext& ctx, std::size_t i, const at::Tensor& amax);
at::Tensor kept_weight_amax(torch::autograd::AutogradContext& ctx, std::size_t i);

/// Throws where a graph of backward is asked for, which would not see what was accumulated.
void refuse_create_graph(const char* operation);

/// A gradient as backward returns it: it has no derivative of its own.
at::Tensor first_derivative(const char* operation, const at::Tensor& gradient);

}  // namespace octavo::ops
