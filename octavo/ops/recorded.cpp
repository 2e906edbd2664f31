#include "octavo/ops/recorded.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <string>

#include "octavo/ops/below.h"

namespace octavo::ops {
namespace {

std::string accumulate_key(std::size_t i) { return "accumulate_into" + std::to_string(i); }
std::string amax_key(std::size_t i) { return "weight_amax" + std::to_string(i); }

void keep(torch::autograd::AutogradContext& ctx, const std::string& key, const at::Tensor& tensor) {
  if (tensor.defined()) ctx.saved_data[key] = tensor;
}

at::Tensor kept(torch::autograd::AutogradContext& ctx, const std::string& key) {
  const auto found = ctx.saved_data.find(key);
  return found == ctx.saved_data.end() ? at::Tensor() : found->second.toTensor();
}

}  // namespace

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

bool keeps_transposed(KeepWeightTransposed keep, const std::optional<std::int64_t>& rows,
                      const std::optional<std::int64_t>& features) {
  if (keep != KeepWeightTransposed::kAuto) return keep == KeepWeightTransposed::kOn;
  return !rows || !features || *rows >= *features;
}

void save_weight(torch::autograd::variable_list& saved, const at::Tensor& w,
                 const QuantizedLayouts* given, bool kept, const at::Tensor& bytes,
                 const at::Tensor& scale) {
  if (given && given->transposed.defined()) {
    saved.insert(saved.end(), {given->transposed, given->transposed_scale});
  } else if (kept) {
    saved.insert(saved.end(), {bytes, scale});
  } else {
    saved.insert(saved.end(), {w, at::Tensor()});
  }
}

void check_accumulate_into(const char* operation, const at::Tensor& into, const at::Tensor& w) {
  TORCH_CHECK(!into.defined() || (w.requires_grad() && into.sizes() == w.sizes() &&
                                  into.scalar_type() == w.scalar_type() && into.is_contiguous() &&
                                  into.device() == w.device()),
              operation,
              ": accumulate_into: expected the gradient of a weight that requires one, a ",
              "contiguous ", w.scalar_type(), " ", w.sizes(), "; leave it undefined for others");
}

void keep_accumulate_into(torch::autograd::AutogradContext& ctx, std::size_t i,
                          const at::Tensor& into) {
  keep(ctx, accumulate_key(i), into);
}

at::Tensor kept_accumulate_into(torch::autograd::AutogradContext& ctx, std::size_t i) {
  return kept(ctx, accumulate_key(i));
}

void keep_weight_amax(torch::autograd::AutogradContext& ctx, std::size_t i,
                      const at::Tensor& amax) {
  keep(ctx, amax_key(i), amax);
}

at::Tensor kept_weight_amax(torch::autograd::AutogradContext& ctx, std::size_t i) {
  return kept(ctx, amax_key(i));
}

void refuse_create_graph(const char* operation) {
  TORCH_CHECK(!at::GradMode::is_enabled(), operation,
              ": accumulate_into has no second derivative; call backward() without create_graph");
}

at::Tensor first_derivative(const char* operation, const at::Tensor& gradient) {
  return at::GradMode::is_enabled()
             ? without_derivative(std::string(operation) + "'s backward", gradient)
             : gradient;
}

}  // namespace octavo::ops
