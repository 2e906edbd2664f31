#include "octavo/nn/permute.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

namespace octavo::nn {
namespace {

at::Tensor copy_to_rows(const at::Tensor& x_MD, const at::Tensor& token) {
  return x_MD.index_select(0, token);
}

at::Tensor sum_of_copies(const at::Tensor& x_RD, const at::Tensor& row) {
  const at::Tensor copies_RD = x_RD.index_select(0, row.flatten());
  if (row.size(1) == 1) return copies_RD;  // nothing is added
  return copies_RD.view({row.size(0), row.size(1), x_RD.size(1)}).sum(1);
}

// The two are each other's transpose, so each is the other's backward.
class Permute : public torch::autograd::Function<Permute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& token, const at::Tensor& row) {
    context->save_for_backward({row});
    return copy_to_rows(x, token);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    return {sum_of_copies(grads[0], context->get_saved_variables()[0]), at::Tensor(), at::Tensor()};
  }
};

class Unpermute : public torch::autograd::Function<Unpermute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& token, const at::Tensor& row) {
    context->save_for_backward({token});
    return sum_of_copies(x, row);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    return {copy_to_rows(grads[0], context->get_saved_variables()[0]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Permutation sort_by_expert(const at::Tensor& experts, std::int64_t number_of_experts) {
  TORCH_CHECK(experts.dim() == 2 && experts.scalar_type() == at::kLong,
              "sort_by_expert: experts: expected int64 (M, k), got ", experts.scalar_type(), " ",
              experts.sizes(), "; give the choices of a router");
  const std::int64_t copies = experts.size(1);
  const at::Tensor flat = experts.flatten();
  Permutation order;
  order.choice = std::get<1>(flat.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false));
  order.token = copies == 1 ? order.choice : order.choice.div(copies, "floor");
  order.row = at::empty_like(flat)
                  .scatter_(0, order.choice, at::arange(flat.size(0), flat.options()))
                  .view(experts.sizes());
  // Not bincount, which reads the largest number on the host.
  order.tokens_per_expert =
      at::zeros({number_of_experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
  order.offs = order.tokens_per_expert.cumsum(0, at::kInt);
  return order;
}

at::Tensor permute(const at::Tensor& x, const Permutation& order) {
  return Permute::apply(x, order.token, order.row);
}

at::Tensor unpermute(const at::Tensor& x, const Permutation& order) {
  return Unpermute::apply(x, order.token, order.row);
}

}  // namespace octavo::nn
