#include "octavo/ops/below.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace octavo::ops {
namespace {

// Autograd's nodes are held by std::shared_ptr in torch 2.11 and by c10::intrusive_ptr in later
// releases.
template <typename Node, typename Pointer = decltype(torch::autograd::Edge::function)>
Pointer make_node(std::string text) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::move(text));
  } else {
    return c10::make_intrusive<Node>(std::move(text));
  }
}

}  // namespace

bool records_without_autocast(const at::Tensor& x) {
  return at::GradMode::is_enabled() && !at::autocast::is_autocast_enabled(x.device().type());
}

bool requires_derivative(std::initializer_list<at::Tensor> inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  return false;
}

void refuse_tangents(const char* what, std::initializer_list<at::Tensor> inputs) {
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK(!input.defined() || !input._fw_grad(0).defined(), what,
                ": forward-mode derivatives are not implemented; use backward()");
  }
}

void check_one_device(std::string_view what, std::initializer_list<at::Tensor> inputs) {
  const at::Tensor& first = *inputs.begin();
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK(!input.defined() || input.device() == first.device(), what,
                ": expected all tensors on one device, got ", first.device(), " and ",
                input.device(), "; move them to one");
  }
}

at::Tensor without_derivative(const std::string& what, const at::Tensor& output) {
  at::Tensor result = output.detach();
  torch::autograd::set_history(
      result, make_node<torch::autograd::Error>(
                  what + " has no derivative; detach() its result where none is meant"));
  return result;
}

}  // namespace octavo::ops
