#include "octavo/nn/experts.h"

#include <ATen/Functions.h>

#include <cmath>

#include "octavo/nn/grouped_linear.h"
#include "octavo/ops/below.h"
#include "octavo/ops/float8_experts.h"
#include "octavo/ops/float8_grouped_linear.h"
#include "octavo/ops/swiglu.h"

namespace octavo::nn {
namespace {

// torch.nn.Linear's initialisation of each expert: uniform within 1 / sqrt(in_features).
void initialise(torch::Tensor& weight_ENK) {
  torch::NoGradGuard no_grad;
  const double bound = 1.0 / std::sqrt(std::max<double>(1.0, double(weight_ENK.size(2))));
  weight_ENK.uniform_(-bound, bound);
}

}  // namespace

ExpertsImpl::ExpertsImpl(const ExpertsOptions& options) : options(options) { reset(); }

void ExpertsImpl::reset() {
  TORCH_CHECK(options.experts >= 1 && options.features >= 1 && options.hidden >= 1,
              "Experts: expected at least one expert, feature and hidden feature, got ",
              options.experts, ", ", options.features, " and ", options.hidden,
              "; give the sizes of the model");
  gate_up_proj = register_parameter(
      "gate_up_proj",
      torch::empty({options.experts, 2 * options.hidden, options.features}, options.tensor));
  down_proj = register_parameter(
      "down_proj",
      torch::empty({options.experts, options.features, options.hidden}, options.tensor));
  if (!options.initialise) return;
  initialise(gate_up_proj);
  initialise(down_proj);
}

void ExpertsImpl::pretty_print(std::ostream& stream) const {
  stream << "octavo::nn::Experts(" << options.experts << " experts, " << options.features << ", "
         << options.hidden << (recipe ? ", recipe " + recipe->to_string() : "") << ")";
}

torch::Tensor ExpertsImpl::forward(const torch::Tensor& x, const torch::Tensor& offs) {
  // The operation computes the gradients of both weights or of none.
  const bool trained = gate_up_proj.requires_grad();
  bool fuses = recipe && fusion && observer == nullptr && trained == down_proj.requires_grad() &&
               gate_up_proj.scalar_type() == down_proj.scalar_type();
  // Weights that are quantised already enter only where a graph is recorded without autocast.
  if (gate_up_cache || down_cache) {
    fuses = fuses && (trained || x.requires_grad()) && ops::records_without_autocast(x);
  }
  if (fuses) {
    return float8_experts(
        x, gate_up_proj, down_proj, offs, *recipe,
        {.keep_weight_transposed = keep_weight_transposed,
         .weights = {gate_up_cache ? &gate_up_cache->get(gate_up_proj, *recipe) : nullptr,
                     down_cache ? &down_cache->get(down_proj, *recipe) : nullptr},
         .accumulate_into = {gradient_to_add_to(gate_up_proj), gradient_to_add_to(down_proj)}});
  }
  const auto product = [&](const char* name, const at::Tensor& a, const at::Tensor& w,
                           std::optional<WeightCache>& cache) {
    if (!recipe) return grouped_linear(a, w, offs);
    const at::Tensor y = float8_grouped_linear(a, w, offs, *recipe,
                                               {.keep_weight_transposed = keep_weight_transposed,
                                                .weight = cache ? &cache->get(w, *recipe) : nullptr,
                                                .accumulate_into = gradient_to_add_to(w)});
    if (observer != nullptr) observer->saw(*this, name, a, w, y);
    return y;
  };
  const at::Tensor gate_up = product("gate_up_proj", x, gate_up_proj, gate_up_cache);  // (M, 2F)
  return product("down_proj", swiglu(gate_up), down_proj, down_cache);  // (M, F), (M, D)
}

}  // namespace octavo::nn
