#include "octavo/nn/linear.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "octavo/nn/embedding.h"
#include "octavo/nn/owned_gradient.h"
#include "octavo/ops/below.h"
#include "octavo/ops/float8_linears.h"

namespace octavo::nn {
namespace {

// y = x . w^T whose backward writes or adds dw to w.grad() in the product itself.
class LinearInPlace : public torch::autograd::Function<LinearInPlace> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    context->save_for_backward({x, w});
    return at::linear(x, w);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &dy = gradients[0];
    const c10::NoGradGuard no_grad;
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = at::matmul(dy, w);
    const at::Tensor dy_NM = dy.reshape({-1, dy.size(-1)}).t();
    const at::Tensor x_MK = x.reshape({-1, x.size(-1)});
    if (w.grad().defined()) {
      w.grad().addmm_(dy_NM, x_MK);
    } else {
      w.mutable_grad() = at::mm(dy_NM, x_MK);
    }
    return {dx, at::Tensor()};
  }
};

}  // namespace

LinearImpl::LinearImpl(const LinearOptions& options) : options(options) { reset(); }

void LinearImpl::reset() {
  TORCH_CHECK(options.in_features >= 0 && options.out_features >= 0,
              "Linear: expected in_features and out_features of 0 or more, got ",
              options.in_features, " and ", options.out_features, "; give the sizes of the layer");
  weight = register_parameter(
      "weight", torch::empty({options.out_features, options.in_features}, options.tensor));
  // LibTorch warns of an undefined parameter that is to require a gradient.
  bias = options.bias
             ? register_parameter("bias", torch::empty({options.out_features}, options.tensor))
             : register_parameter("bias", torch::Tensor(), /*requires_grad=*/false);
  if (!options.initialise) return;
  // torch.nn.Linear's initialisation: uniform within 1 / sqrt(in_features).
  const double bound = options.in_features > 0 ? 1.0 / std::sqrt(double(options.in_features)) : 0.0;
  torch::NoGradGuard no_grad;
  weight.uniform_(-bound, bound);
  if (bias.defined()) bias.uniform_(-bound, bound);
}

void LinearImpl::tie_weight(const torch::Tensor& other) {
  TORCH_CHECK(other.dim() == 2 && other.size(0) == options.out_features &&
                  other.size(1) == options.in_features,
              "tie_weight: the other weight is ", other.sizes(), "; this linear's is [",
              options.out_features, ", ", options.in_features, "]; give both the same sizes");
  parameters_["weight"] = other;
  weight = other;
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "octavo::nn::Linear(" << options.in_features << ", " << options.out_features
         << (options.bias ? ", bias" : "") << (recipe ? ", recipe " + recipe->to_string() : "")
         << ")";
}

LinearInput share_input(const at::Tensor& x, const std::vector<const LinearImpl*>& linears) {
  LinearInput input{.x = x};
  const std::optional<Recipe>& recipe = (*linears.begin())->recipe;
  if (!recipe || !ops::records_without_autocast(x)) return input;
  int readers = 0;
  bool need_dw = false;
  for (const LinearImpl* linear : linears) {
    if (linear->recipe != recipe) continue;
    ++readers;
    need_dw = need_dw || linear->weight.requires_grad();
  }
  if (readers < 2 || !(need_dw || x.requires_grad())) return input;
  input.quantized = quantize_input(x, *recipe, need_dw);
  input.recipe = recipe;
  return input;
}

std::optional<InputRecipe> recipe_together(const at::Tensor& x,
                                           const std::vector<const LinearImpl*>& linears) {
  const std::optional<Recipe>& recipe = linears.front()->recipe;
  bool together = recipe && ops::records_without_autocast(x);
  bool need_dw = false;
  for (const LinearImpl* linear : linears) {
    together = together && linear->recipe == recipe && !linear->bias.defined() &&
               linear->observer == nullptr;
    need_dw = need_dw || linear->weight.requires_grad();
  }
  if (!together || !(need_dw || x.requires_grad())) return std::nullopt;
  return InputRecipe{*recipe, need_dw};
}

std::vector<at::Tensor> forward_together(const LinearInput& input,
                                         const std::vector<LinearImpl*>& linears, bool fusion) {
  const std::vector<const LinearImpl*> readers(linears.begin(), linears.end());
  const auto together = fusion ? recipe_together(input.x, readers) : std::nullopt;
  if (together) {
    std::vector<OneOfLinears> all;
    for (LinearImpl* linear : linears) all.push_back({linear->weight, linear->float8_options()});
    return float8_linears(input.x, all, together->recipe,
                          input.recipe == together->recipe ? &*input.quantized : nullptr);
  }
  const LinearInput shared = input.quantized ? input : share_input(input.x, readers);
  std::vector<at::Tensor> y;
  for (LinearImpl* linear : linears) y.push_back(linear->forward_shared(shared));
  return y;
}

torch::Tensor LinearImpl::forward(const torch::Tensor& x) {
  return forward_shared(LinearInput{.x = x});
}

torch::Tensor LinearImpl::forward_shared(const LinearInput& input) {
  const torch::Tensor& x = input.x;
  if (!recipe) {
    if (gradient_in_place && weight.is_cuda() && !bias.defined() &&
        x.scalar_type() == weight.scalar_type() && owns_gradient(weight)) {
      return LinearInPlace::apply(x, weight);
    }
    return at::linear(x, weight, bias);
  }
  const std::optional<at::Tensor> b =
      bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  Float8LinearOptions with = float8_options();
  if (input.quantized && input.recipe == recipe) with.input = &*input.quantized;
  const torch::Tensor y = float8_linear(x, weight, b, *recipe, with);
  if (observer != nullptr) observer->saw(*this, "", x, weight, y);
  return y;
}

Float8LinearOptions LinearImpl::float8_options() {
  Float8LinearOptions options{.keep_weight_transposed = keep_weight_transposed};
  if (weight_amax) options.weight_amax = weight_amax->of(weight);
  if (weight_cache) options.weight = &weight_cache->get(weight, *recipe, options.weight_amax);
  options.accumulate_into = gradient_to_add_to(weight);
  return options;
}

void put_gradients_in_place(torch::nn::Module& module) {
  auto names = name_counts(module);
  module.apply([&](torch::nn::Module& each) {
    if (auto* embedding = dynamic_cast<EmbeddingImpl*>(&each)) embedding->gradient_in_place = true;
    auto* linear = dynamic_cast<LinearImpl*>(&each);
    if (linear && names[linear->weight.unsafeGetTensorImpl()] == 1) {
      linear->gradient_in_place = true;
    }
  });
}

}  // namespace octavo::nn
