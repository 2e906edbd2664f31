// Operators that answer questions about recipes and devices, so that Python asks the library
// instead of keeping tables of its own. They take no tensors.
#include <c10/core/Device.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "octavo/device/native_products.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/recipe/recipe.h"

namespace octavo::ops {
namespace {

std::string canonical_recipe(std::string_view recipe) { return Recipe::parse(recipe).to_string(); }

std::vector<std::string> listed_recipes() { return recipe_names(); }

std::vector<std::string> listed_aliases() {
  std::vector<std::string> pairs;
  for (const auto& [alias, canonical] : recipe_aliases()) pairs.push_back(alias + "=" + canonical);
  return pairs;
}

std::string product_word(const NativeProduct& product) {
  const std::string backend(name(product.backend));
  if (product.backend == Backend::kEmulated) return backend;
  return (is_native(product.backend) ? "native (" : "emulated (") + backend + " backend)" +
         (product.needs_probe ? ", if a product at start-up succeeds" : "");
}

std::vector<std::string> described_device(c10::Device device) {
  const Architecture architecture = architecture_of(device);
  std::vector<std::string> lines = {
      "product=" + product_name(device), "architecture=" + std::string(architecture.name),
      "flavour=" + std::string(name(architecture.flavour)),
      std::string("fp8_hardware=") + (architecture.fp8_hardware ? "yes" : "no")};
  for (const ScalingFamily family : kAllScalingFamilies) {
    const Flavour flavour =
        family == ScalingFamily::kMx ? Flavour::kOCP : architecture.flavour;  // MX is OCP only
    lines.push_back("dense " + std::string(name(family)) + "=" +
                    product_word(native_product(architecture, family, flavour)));
    if (family == ScalingFamily::kTensorwise) continue;  // experts have no such recipe
    lines.push_back("experts " + std::string(name(family)) + "=" +
                    product_word(native_grouped_product(architecture, family, flavour)));
  }
  return lines;
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CompositeImplicitAutograd, m) {
  m.impl("canonical_recipe", &canonical_recipe);
  m.impl("recipe_names", &listed_recipes);
  m.impl("recipe_aliases", &listed_aliases);
  m.impl("describe_device", &described_device);
}

}  // namespace octavo::ops
