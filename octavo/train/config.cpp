#include "octavo/train/config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "octavo/recipe/nearest.h"
#include "octavo/train/json_file.h"

namespace octavo::train {
namespace {

using nlohmann::json;

std::string with_underscores(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

// What a checkpoint's state.json can hold.
bool is_utf8(std::string_view text) {
  try {
    json(std::string(text)).dump();
    return true;
  } catch (const json::exception&) {
    return false;
  }
}

void apply(TrainConfig& config, const ConfigSetting& setting) {
  try {
    config_key(setting.key, setting.source).set(config, json::parse(setting.json));
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, error.what_without_backtrace(), " (", setting.source, ")");
  }
}

}  // namespace

const ConfigKey& config_key(std::string_view name, std::string_view source) {
  const std::string wanted = with_underscores(name);
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    if (key.name == wanted) return key;
    names.push_back(key.name);
  }
  TORCH_CHECK(false, "unknown key \"", std::string(name), "\" in ", std::string(source),
              did_you_mean(wanted, names), "; octavo train --help lists all keys");
}

std::vector<ConfigSetting> read_config_file(const std::filesystem::path& path) {
  std::set<std::string> seen;
  std::string twice;
  const JsonResult read = read_json(path, [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key) {
      const std::string name = with_underscores(parsed.get<std::string>());
      if (!seen.insert(name).second) twice = name;
    }
    return true;
  });
  TORCH_CHECK(read, "config file '", path.string(), "': ", read.error,
              "; give a JSON file of keys (octavo train --help lists them)");
  const json& object = read.value;
  TORCH_CHECK(object.is_object(), "config file '", path.string(),
              "': expected one flat JSON object such as {\"steps\": 100}, got ",
              object.type_name());
  TORCH_CHECK(twice.empty(), "config file '", path.string(), "': key \"", twice,
              "\" is given twice; keep one");
  std::vector<ConfigSetting> settings;
  for (const auto& [name, value] : object.items())
    settings.push_back({config_key(name, path.string()).name, value.dump(), path.string()});
  return settings;
}

ConfigSetting setting_from_text(std::string_view name, std::string_view text,
                                std::string_view source) {
  const ConfigKey& key = config_key(name, source);
  TORCH_CHECK(is_utf8(text), key.name, ": expected text in UTF-8, got bytes that are none (",
              std::string(source), "); give the file or folder another name");
  json value = std::string(text);  // what does not convert stays text, and set() names the type
  if (key.type == "true|false") {
    if (text == "true" || text == "false") value = text == "true";
  } else if (key.type == "list") {
    value = json::array();
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      if (end > begin) value.push_back(std::string(text.substr(begin, end - begin)));
      begin = end + 1;
    }
  } else if (key.type == "integer" || key.type == "number") {
    // JSON's own number syntax (no hexadecimal, no inf), plus a leading '+' or '.'.
    const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
    const std::string written = (digits.starts_with('.') ? "0" : "") + std::string(digits);
    const json number = json::parse(written, nullptr, /*allow_exceptions=*/false);
    if (number.is_number()) value = number;
  }
  return {key.name, value.dump(), std::string(source)};
}

TrainConfig make_config(const std::vector<ConfigSetting>& settings) {
  TrainConfig config;
  for (const ConfigSetting& setting : settings)
    if (setting.key == "preset") apply(config, setting);
  config.model = models::llama_preset(config.preset);
  for (const ConfigSetting& setting : settings) apply(config, setting);
  if (config.resume_step > 0) config.resume = true;
  validate(config);
  return config;
}

void validate(const TrainConfig& config) {
  for (const ConfigKey& key : config_keys()) {
    TORCH_CHECK(key.valid(config), key.name, ": expected ", key.rule, ", got ",
                key.get(config).dump(), key.repair);
  }
  config.model.validate();  // the sizes that divide
  TORCH_CHECK(config.sequence <= config.model.max_sequence,
              "sequence: expected at most max_sequence, ", config.model.max_sequence, ", got ",
              config.sequence, "; shorten it or raise max_sequence");
  training_recipe(config);
}

std::string to_json(const TrainConfig& config) {
  std::string out = "{";
  for (const ConfigKey& key : config_keys()) {
    out += out.size() > 1 ? ",\n" : "\n";
    out += "  " + json(key.name).dump() + ": " + key.get(config).dump();
  }
  return out + "\n}\n";
}

std::vector<ConfigSetting> settings_of(const TrainConfig& config, std::string_view source) {
  std::vector<ConfigSetting> settings;
  for (const ConfigKey& key : config_keys())
    settings.push_back({key.name, key.get(config).dump(), std::string(source)});
  return settings;
}

std::optional<Recipe> training_recipe(const TrainConfig& config) {
  if (config.recipe == "high_precision") return std::nullopt;
  Recipe recipe;
  try {
    recipe = Recipe::parse(config.recipe);
  } catch (const c10::Error& error) {
    // The recipe layer does not know the word that turns FP8 off.
    TORCH_CHECK(false, error.what_without_backtrace(), "; or high_precision for none");
  }
  if (config.flavour != "auto") {
    const FlavourChoice wanted =
        config.flavour == "ocp" ? FlavourChoice::kOCP : FlavourChoice::kFNUZ;
    TORCH_CHECK(recipe.flavour == FlavourChoice::kAuto || recipe.flavour == wanted, "flavour: \"",
                config.flavour, "\" contradicts recipe \"", config.recipe,
                "\"; leave flavour at auto");
    recipe.flavour = wanted;
  }
  recipe.resolve(Flavour::kOCP);  // an error where the recipe has no such flavour
  return recipe;
}

}  // namespace octavo::train
