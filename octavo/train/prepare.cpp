#include "octavo/train/prepare.h"

#include <ATen/Context.h>
#include <torch/utils.h>
#include <unistd.h>

#if OCTAVO_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <algorithm>
#include <cmath>

#include "octavo/models/llama_accounting.h"
#include "octavo/ops/names.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/train/product_run.h"

namespace octavo::train {

namespace {

at::ScalarType parameter_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  TORCH_CHECK(false, "dtype: expected float32 or bfloat16, got '", name, "'; set one of them");
}

// The system would start to swap or kill, a layer at a time, before an allocation fails.
void check_memory(const TrainConfig& config) {
  const at::ScalarType dtype = parameter_dtype(config.dtype);
  const double needed = static_cast<double>(models::parameter_count(config.model).total()) *
                        static_cast<double>(c10::elementSize(dtype));
  const double there =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  TORCH_CHECK(needed <= there || there <= 0, "model: its parameters need ",
              std::llround(needed / (1 << 30)), " GiB in ", config.dtype, ", this machine has ",
              std::llround(there / (1 << 30)),
              "; make dim, hidden, layers or vocabulary smaller (octavo inspect counts)");
}

}  // namespace

c10::Device device_named(const std::string& word) {
  if (word == "cpu") return at::kCPU;
  TORCH_CHECK(word == "cuda", "device: expected cpu or cuda, got '", word, "'; give one of them");
#if OCTAVO_WITH_CUDA
  TORCH_CHECK(at::hasCUDA() && c10::cuda::device_count() > 0,
              "device: cuda asked for, and no GPU is visible; check nvidia-smi and "
              "CUDA_VISIBLE_DEVICES, or set device to cpu");
  return c10::Device(at::kCUDA, c10::cuda::current_device());
#else
  TORCH_CHECK(false, "device: expected cpu, got '", word,
              "'; this build has no GPU kernels: build the preset cuda, or set device to cpu");
#endif
}

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
  check_memory(config);
  PreparedModel prepared;
  prepared.device = device_named(config.device);
  prepared.architecture = architecture_of(prepared.device);
  prepared.recipe = training_recipe(config);
  // What has no deterministic form in LibTorch is not used here, so a warning is enough.
  at::globalContext().setDeterministicAlgorithms(config.deterministic, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  torch::manual_seed(config.seed);
  prepared.model =
      models::Llama(config.model, at::dtype(parameter_dtype(config.dtype)).device(prepared.device));
  prepared.model->set_activation_checkpointing(config.activation_checkpointing);
  for (const nn::NamedFloat8Layer& named : nn::float8_layers(*prepared.model)) {
    named.layer->keep_weight_transposed =
        ops::parse_keep("keep_weight_transposed", config.keep_weight_transposed);
  }
  if (prepared.recipe) {
    nn::ConvertOptions options{.recipe = *prepared.recipe};
    options.filter_fqns = config.filter_fqns;
    options.select_fqns = config.select_fqns;
    options.allow_unmatched = config.allow_unmatched_filters;
    prepared.linears = nn::convert_to_float8_training(*prepared.model, options);
  } else {
    for (const nn::NamedFloat8Layer& layer : nn::float8_layers(*prepared.model)) {
      prepared.linears.push_back({layer.fqn, false, "recipe high_precision"});
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

std::string PreparedModel::expert_products() const {
  for (const nn::NamedFloat8Layer& named : nn::float8_layers(*model)) {
    if (dynamic_cast<nn::ExpertsImpl*>(named.layer) == nullptr || !named.layer->recipe) continue;
    const LinearSpec spec = named.layer->recipe->resolve_experts(architecture.flavour);
    return "products " + products_text(spec, architecture, ProductKind::kGrouped) +
           "; fast accumulation " + fast_accumulation_text(spec);
  }
  return "products high precision";
}

HighPrecisionScope::HighPrecisionScope(const models::Llama& model) : model_(model) {
  for (const nn::NamedFloat8Layer& named : nn::float8_layers(*model)) {
    recipes_.emplace_back(named.layer, named.layer->recipe);
    named.layer->recipe.reset();
  }
}

HighPrecisionScope::~HighPrecisionScope() {
  for (auto& [layer, recipe] : recipes_) layer->recipe = recipe;
}

double validation_loss(models::Llama& model, const ValidationBatches& batches) {
  torch::NoGradGuard no_grad;
  const c10::Device device = model->lm_head->weight.device();
  double sum = 0.0;
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < batches.size(); ++i) {
    const Batch batch = batches.batch(i).to(device);
    sum += model->loss(batch.tokens, batch.targets).item<float>() *
           static_cast<double>(batch.targets.numel());
    targets += batch.targets.numel();
  }
  return sum / static_cast<double>(targets);
}

}  // namespace octavo::train
