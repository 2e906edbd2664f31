#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "octavo/nn/float8_layer.h"
#include "octavo/nn/fusion.h"

namespace octavo::nn {

struct ExpertsOptions {
  std::int64_t experts = 0;       ///< E
  std::int64_t features = 0;      ///< D
  std::int64_t hidden = 0;        ///< F, of one expert
  bool initialise = true;         ///< false: the weights' memory is left as it is
  at::TensorOptions tensor = {};  ///< dtype and device of the weights
};

/// E SwiGLU networks on tokens sorted by expert:
///   y[m,:] = down[g] . (silu(gate[g] . x[m,:]) * (up[g] . x[m,:]))   for the rows m of group g
///
/// Gate and up are one weight, gate_up_proj (E, 2F, D), gate's rows first: one product, for which x
/// is quantised once. Without a recipe grouped_linear(), with one float8_experts(), or without
/// fusion float8_grouped_linear() twice, the same bits (blockwise scales are those of two weights
/// where F is a multiple of 128). Converting sets the recipe and allocates nothing; parameters keep
/// their names.
class ExpertsImpl : public torch::nn::Cloneable<ExpertsImpl>,
                    public Float8Layer,
                    public FusedLayers {
 public:
  explicit ExpertsImpl(const ExpertsOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::vector<CachedWeight> cached_weights() override {
    return {{gate_up_proj, gate_up_cache}, {down_proj, down_cache}};
  }

  /// x: (M, D) sorted by expert; offs: (E) int32, END offset of each group, the last of which is M.
  /// (M, D) in x's dtype. An expert without tokens has gradients of exactly zero. Errors: see
  /// grouped_linear() and float8_grouped_linear().
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& offs);

  torch::Tensor gate_proj() const { return gate_up_proj.narrow(1, 0, options.hidden); }
  torch::Tensor up_proj() const { return gate_up_proj.narrow(1, options.hidden, options.hidden); }

  ExpertsOptions options;
  torch::Tensor gate_up_proj;  // (E, 2F, D)
  torch::Tensor down_proj;     // (E, D, F)
  std::optional<WeightCache> gate_up_cache, down_cache;
};
TORCH_MODULE(Experts);

}  // namespace octavo::nn
