#include "octavo/ops/below.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace octavo::ops {

bool requires_derivative(std::initializer_list<at::Tensor> inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  return false;
}

at::Tensor without_derivative(const std::string& what, const at::Tensor& output) {
  at::Tensor result = output.detach();
  torch::autograd::set_history(
      result, std::make_shared<torch::autograd::Error>(
                  what + " has no derivative; detach() its result where none is meant"));
  return result;
}

}  // namespace octavo::ops
