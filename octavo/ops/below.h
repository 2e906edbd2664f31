#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <initializer_list>
#include <string>
#include <string_view>

/// What operators without a derivative of their own, or without casts under autocast, share.
namespace octavo::ops {

/// An Autocast kernel that calls the operator again with autocast off, so that at::mm and the like
/// inside its kernels keep their types (a reference product in fp32 must not become bf16).
template <auto op>
struct below_autocast;

template <typename Result, typename... Args, Result (*op)(Args...)>
struct below_autocast<op> {
  static Result call(Args... args) {
    c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
    return op(args...);
  }
};

/// Whether autograd would record an operator on these inputs (undefined ones do not count).
bool requires_derivative(std::initializer_list<at::Tensor> inputs);

/// Whether a graph is being recorded and autocast is off for x's device: what operands that are
/// quantised already, known amaxes and gradients to add to ask for.
bool records_without_autocast(const at::Tensor& x);

/// Throws where an input carries a forward-mode tangent: no operator here has a forward-mode
/// derivative, and one that is silently zero is worse than none.
void refuse_tangents(const char* what, std::initializer_list<at::Tensor> inputs);

/// Throws unless all inputs are on the first one's device. The dispatcher picks a Meta kernel as
/// soon as one argument is on the meta device, which would then allocate for the others and fill
/// nothing.
void check_one_device(std::string_view what, std::initializer_list<at::Tensor> inputs);

/// `output`, which requires a gradient and raises an error naming `what` once that is asked for.
/// A result that silently required none would train a model without the gradients it should have.
at::Tensor without_derivative(const std::string& what, const at::Tensor& output);

}  // namespace octavo::ops
