#include "octavo/train/prepare.h"

#include <torch/utils.h>

#include <algorithm>

#include "octavo/models/llama_accounting.h"
#include "octavo/train/product_run.h"

namespace octavo::train {

namespace {

at::ScalarType parameter_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  TORCH_CHECK(false, "dtype: expected float32 or bfloat16, got '", name, "'; set one of them");
}

}  // namespace

std::string recipe_text(const std::optional<Recipe>& recipe) {
  if (!recipe) return "high_precision";
  Recipe plain = *recipe;
  plain.flavour = FlavourChoice::kAuto;
  return plain.to_string();
}

std::int64_t PreparedModel::layers_converted() const {
  return std::count_if(linears.begin(), linears.end(), [](const auto& l) { return l.converted; });
}

std::string PreparedModel::flavour() const {
  if (!recipe) return "none";
  const LinearSpec spec = recipe->resolve(architecture.flavour);
  return std::string(name(flavour_of(spec.forward.a->format)));
}

PreparedModel prepare_model(const TrainConfig& config) {
  TORCH_CHECK(config.device == "cpu", "device: this build trains on cpu, got '", config.device,
              "'; set device to cpu");
  PreparedModel prepared;
  prepared.architecture = parse_architecture(config.device);
  prepared.recipe = training_recipe(config);
  torch::manual_seed(config.seed);
  prepared.model = models::Llama(config.model, at::dtype(parameter_dtype(config.dtype)));
  if (config.activation_checkpointing) {
    prepared.model->set_activation_checkpointing(models::ActivationCheckpointing::kBlocks);
  }
  if (prepared.recipe) {
    nn::ConvertOptions options{.recipe = *prepared.recipe};
    options.filter_fqns = config.filter_fqns;
    options.allow_unmatched = config.allow_unmatched_filters;
    prepared.linears = nn::convert_to_float8_training(*prepared.model, options);
  } else {
    for (const models::NamedLinear& linear : models::named_linears(*prepared.model)) {
      prepared.linears.push_back({linear.fqn, false, "recipe high_precision"});
    }
  }
  return prepared;
}

std::string PreparedModel::products() const {
  return recipe ? products_text(recipe->resolve(architecture.flavour), architecture)
                : ProductRun{.how = "high precision"}.text();
}

std::string PreparedModel::fast_accumulation() const {
  return recipe ? fast_accumulation_text(recipe->resolve(architecture.flavour)) : "none";
}

HighPrecisionScope::HighPrecisionScope(const models::Llama& model) {
  for (const models::NamedLinear& named : models::named_linears(*model)) {
    linears_.emplace_back(named.linear, named.linear->recipe);
    linears_.back().first->recipe.reset();
  }
}

HighPrecisionScope::~HighPrecisionScope() {
  for (auto& [linear, recipe] : linears_) linear->recipe = recipe;
}

double validation_loss(models::Llama& model, const ValidationBatches& batches) {
  torch::NoGradGuard no_grad;
  double sum = 0.0;
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < batches.size(); ++i) {
    const Batch batch = batches.batch(i);
    sum += model->loss(batch.tokens, batch.targets).item<float>() *
           static_cast<double>(batch.targets.numel());
    targets += batch.targets.numel();
  }
  return sum / static_cast<double>(targets);
}

}  // namespace octavo::train
