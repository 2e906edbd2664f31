#include <c10/util/Exception.h>

#include <algorithm>

#include "octavo/recipe/nearest.h"
#include "octavo/recipe/recipe.h"

namespace octavo {
namespace {

// Positions are the enums' values.
const std::vector<std::string> kNames = {"tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise",
                                         "mxfp8"};
const std::vector<std::string> kFields = {"flavour", "fast_accumulation", "mx_rounding",
                                          "gw_high_precision"};
const std::vector<std::string> kFlavours = {"auto", "ocp", "fnuz"};
const std::vector<std::string> kFastAccumulations = {"none", "forward", "all"};  // kDefault: absent
const std::vector<std::string> kMxRoundings = {"floor", "ceil", "even", "rceil"};
const std::vector<std::string> kBooleans = {"false", "true"};

const std::string& name_of(RecipeName name) { return kNames[static_cast<std::size_t>(name)]; }

/// Whether `field` means something for recipes of that name.
bool has_field(RecipeName name, const std::string& field) {
  if (field == "fast_accumulation") {
    return name != RecipeName::kBlockwise && name != RecipeName::kMxfp8;
  }
  if (field == "mx_rounding") return name == RecipeName::kMxfp8;
  if (field == "gw_high_precision") return name != RecipeName::kRowwiseWithGwHp;
  return true;
}

std::vector<std::string> fields_of(RecipeName name) {
  std::vector<std::string> fields;
  for (const std::string& field : kFields) {
    if (has_field(name, field)) fields.push_back(field);
  }
  return fields;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

template <typename Enum>
Enum value_of(const std::string& field, const std::string& value,
              const std::vector<std::string>& known) {
  const auto found = std::find(known.begin(), known.end(), value);
  TORCH_CHECK(found != known.end(), "recipe: ", field, " is one of ", join(known), ", got '", value,
              "'", did_you_mean(value, known));
  return static_cast<Enum>(found - known.begin());
}

void set_field(Recipe& recipe, const std::string& field, const std::string& value) {
  TORCH_CHECK(std::find(kFields.begin(), kFields.end(), field) != kFields.end(),
              "recipe: unknown field '", field, "'", did_you_mean(field, kFields), "; ",
              name_of(recipe.name), " has the fields ", join(fields_of(recipe.name)));
  TORCH_CHECK(has_field(recipe.name, field), "recipe: ", name_of(recipe.name), " has no field ",
              field, "; its fields are ", join(fields_of(recipe.name)), "; leave it out");
  if (field == "flavour") {
    recipe.flavour = value_of<FlavourChoice>(field, value, kFlavours);
  } else if (field == "fast_accumulation") {
    recipe.fast_accumulation = value_of<FastAccumulation>(field, value, kFastAccumulations);
  } else if (field == "mx_rounding") {
    recipe.mx_rounding = value_of<MxRounding>(field, value, kMxRoundings);
  } else {
    recipe.gw_high_precision = value_of<bool>(field, value, kBooleans);
  }
}

/// Reads "field=value,field=value" into `recipe`.
void read_fields(Recipe& recipe, std::string_view text, std::string_view whole) {
  std::vector<std::string> seen;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view item = trim(text.substr(0, comma));
    const std::size_t equals = item.find('=');
    TORCH_CHECK(equals != std::string_view::npos, "recipe: expected field=value, got '", item,
                "' in '", whole, "'; write for example ", name_of(recipe.name), "(flavour=ocp)");
    const std::string field(trim(item.substr(0, equals)));
    TORCH_CHECK(std::find(seen.begin(), seen.end(), field) == seen.end(), "recipe: field ", field,
                " is given twice in '", whole, "'; give it once");
    set_field(recipe, field, std::string(trim(item.substr(equals + 1))));
    seen.push_back(field);
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

/// The recipe of a bare name or alias.
Recipe named(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) {
    Recipe recipe;
    recipe.name = static_cast<RecipeName>(found - kNames.begin());
    return recipe;
  }
  std::vector<std::string> known = kNames;
  for (const auto& [alias, canonical] : recipe_aliases()) {
    if (alias == name) return Recipe::parse(canonical);
    known.push_back(alias);
  }
  TORCH_CHECK(false, "recipe: unknown name '", name, "'", did_you_mean(name, known),
              "; known names: ", join(kNames), "; aliases: ",
              join({known.begin() + static_cast<std::ptrdiff_t>(kNames.size()), known.end()}));
}

}  // namespace

std::string Recipe::to_string() const {
  std::string fields;
  const auto add = [&](const std::string& field, const std::string& value) {
    if (!has_field(name, field)) return;
    fields += (fields.empty() ? "" : ",") + field + "=" + value;
  };
  const Recipe defaults;
  if (flavour != defaults.flavour) add("flavour", kFlavours[static_cast<std::size_t>(flavour)]);
  if (fast_accumulation != defaults.fast_accumulation) {
    add("fast_accumulation", kFastAccumulations[static_cast<std::size_t>(fast_accumulation)]);
  }
  if (mx_rounding != defaults.mx_rounding) {
    add("mx_rounding", kMxRoundings[static_cast<std::size_t>(mx_rounding)]);
  }
  if (gw_high_precision) add("gw_high_precision", "true");
  return name_of(name) + (fields.empty() ? "" : "(" + fields + ")");
}

Recipe Recipe::parse(std::string_view text) {
  const std::string_view trimmed = trim(text);
  const std::size_t open = trimmed.find('(');
  Recipe recipe = named(std::string(trim(trimmed.substr(0, open))));
  if (open != std::string_view::npos) {
    TORCH_CHECK(trimmed.back() == ')', "recipe: expected ')' at the end of '", text,
                "'; write name or name(field=value,...)");
    const std::string_view inner = trim(trimmed.substr(open + 1, trimmed.size() - open - 2));
    if (!inner.empty()) read_fields(recipe, inner, text);
  }
  recipe.resolve(Flavour::kOCP);  // refuses combinations that cannot run
  return recipe;
}

std::vector<std::string> recipe_names() { return kNames; }

std::vector<std::pair<std::string, std::string>> recipe_aliases() {
  return {
      // torchao.prototype.moe_training and torchtitan
      {"fp8_rowwise", "rowwise"},
      {"mxfp8_rceil", "mxfp8"},
      {"mxfp8_rceil_wgrad_with_hp", "mxfp8(gw_high_precision=true)"},
      {"mxfp8_emulated_rceil", "mxfp8"},
      {"mxfp8_wgrad_with_hp", "mxfp8(gw_high_precision=true)"},
      // torchao.prototype.mx_formats, whose configurations round scales by FLOOR unless they say so
      {"mxfp8_cublas", "mxfp8(mx_rounding=floor)"},
      {"mxfp8_cublas_rceil", "mxfp8"},
      {"mxfp8_emulated", "mxfp8(mx_rounding=floor)"},
  };
}

}  // namespace octavo
