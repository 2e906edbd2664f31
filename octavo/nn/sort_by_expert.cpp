#include "octavo/nn/sort_by_expert.h"

#include <ATen/Functions.h>

namespace octavo::nn {

SortedTokens sort_by_expert(const at::Tensor& experts, std::int64_t number_of_experts) {
  TORCH_CHECK(experts.dim() == 2 && experts.scalar_type() == at::kLong,
              "sort_by_expert: experts: expected int64 (M, k), got ", experts.scalar_type(), " ",
              experts.sizes(), "; give the choices of a router");
  const at::Tensor flat = experts.flatten();
  SortedTokens sorted;
  sorted.choice = std::get<1>(flat.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false));
  sorted.row = at::empty_like(flat)
                   .scatter_(0, sorted.choice, at::arange(flat.size(0), flat.options()))
                   .view(experts.sizes());
  // Not bincount, which reads the largest number on the host.
  sorted.tokens_per_expert =
      at::zeros({number_of_experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
  sorted.offs = sorted.tokens_per_expert.cumsum(0, at::kInt);
  return sorted;
}

}  // namespace octavo::nn
