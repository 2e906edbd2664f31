#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/device/architecture.h"
#include "octavo/models/llama.h"
#include "octavo/nn/convert.h"
#include "octavo/train/config.h"
#include "octavo/train/data.h"

namespace octavo::train {

/// A recipe as it is printed beside its flavour: canonical, without the field flavour;
/// "high_precision" without a recipe.
std::string recipe_text(const std::optional<Recipe>& recipe);

/// A model as a configuration asks for it.
struct PreparedModel {
  models::Llama model{nullptr};
  std::optional<Recipe> recipe;              ///< none: high precision
  std::vector<nn::ConvertedLinear> linears;  ///< every linear and experts of it, in order
  c10::Device device = at::kCPU;
  Architecture architecture = kArchitectures[0];  ///< of config.device

  std::int64_t layers_converted() const;
  std::int64_t layers_total() const { return static_cast<std::int64_t>(linears.size()); }
  std::string recipe_string() const { return recipe_text(recipe); }
  /// The element formats' family in use: "ocp" or "fnuz"; "none" in high precision.
  std::string flavour() const;
  /// How the products run, products_text(); "high precision" without a recipe.
  std::string products() const;
  /// fast_accumulation_text(); "none" without a recipe.
  std::string fast_accumulation() const;
  /// "products ...; fast accumulation ..." of the experts; "products high precision" where they are
  /// not converted.
  std::string expert_products() const;
};

/// The device that config.device names, "cpu" or "cuda" (the current GPU). Errors: another word, a
/// build without GPU kernels, no GPU on this machine.
c10::Device device_named(const std::string& word);

/// Builds the model with weights from config.seed (torch::manual_seed: the generator is left in a
/// state that depends on the seed and the sizes alone), in config.dtype, and converts it by
/// config.recipe; its parameters do not depend on the recipe. Errors: an unknown recipe, dtype or
/// device, sizes that do not divide, filters that match nothing, more parameters than the machine's
/// memory holds.
PreparedModel prepare_model(const TrainConfig& config);

/// Takes the recipes off every linear and experts of `model` and puts them back at the end of the
/// scope: the same parameters in high precision.
class HighPrecisionScope {
 public:
  explicit HighPrecisionScope(const models::Llama& model);
  ~HighPrecisionScope();
  HighPrecisionScope(const HighPrecisionScope&) = delete;
  HighPrecisionScope& operator=(const HighPrecisionScope&) = delete;

 private:
  models::Llama model_;  // keeps the layers alive
  std::vector<std::pair<nn::Float8Layer*, std::optional<Recipe>>> recipes_;
};

/// Mean loss over all targets of `batches`, nats per token, without gradients. The mean is taken in
/// double over batch means weighted by their targets. It may be NaN or Inf: the caller says what to
/// do about that.
double validation_loss(models::Llama& model, const ValidationBatches& batches);

}  // namespace octavo::train
