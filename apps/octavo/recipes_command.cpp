#include <iostream>

#include "apps/octavo/command.h"
#include "octavo/recipe/recipe.h"

namespace octavo::app {
namespace {

std::string layout_text(const LayoutSpec& layout) {
  std::string text = std::string(name(layout.format)) + " " + to_string(layout.granularity);
  if (layout.granularity.mx) {
    text += " " + std::string(name(layout.mx_rounding));
  } else if (layout.scale_rounding == ScaleRounding::kPowerOfTwo) {
    text += " 2^n";
  }
  return text;
}

std::string product_text(const ProductSpec& product) {
  if (product.high_precision()) return "high precision";
  return layout_text(*product.a) + " . " + layout_text(*product.b);
}

std::string table_of(Flavour flavour) {
  std::vector<std::vector<std::string>> rows = {
      {"recipe", "y = x . w", "dx = dy . w", "dw = dy . x"}};
  for (const std::string& recipe_name : recipe_names()) {
    Recipe recipe = Recipe::parse(recipe_name);
    recipe.flavour = flavour == Flavour::kOCP ? FlavourChoice::kOCP : FlavourChoice::kFNUZ;
    try {
      const LinearSpec spec = recipe.resolve(flavour);
      rows.push_back(
          {recipe_name, product_text(spec.forward), product_text(spec.dx), product_text(spec.dw)});
    } catch (const c10::Error&) {
      rows.push_back({recipe_name, "OCP only", "", ""});  // MX has no FNUZ elements
    }
  }
  return format_table(rows);
}

}  // namespace

void add_recipes_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("recipes", "list the FP8 recipes and their aliases");
  command->callback([] {
    std::cout << "Formats and scales of each product's two operands (2^n: power-of-two scales)\n\n"
              << "flavour ocp\n"
              << table_of(Flavour::kOCP) << "\nflavour fnuz\n"
              << table_of(Flavour::kFNUZ) << "\n";
    std::vector<std::vector<std::string>> rows = {{"alias", "recipe"}};
    for (const auto& [alias, recipe] : recipe_aliases()) rows.push_back({alias, recipe});
    std::cout
        << format_table(rows)
        << "\nhigh_precision trains without FP8. Variations are written in brackets:\n"
           "  rowwise(flavour=fnuz)  mxfp8(mx_rounding=floor)  rowwise(gw_high_precision=true)"
           "\n  tensorwise(fast_accumulation=none)\n";
  });
}

}  // namespace octavo::app
