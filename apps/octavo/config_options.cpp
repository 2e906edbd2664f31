#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/octavo/command.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/data.h"
#include "octavo/train/gemm_plans.h"
#include "octavo/train/init.h"
#include "octavo/train/json_file.h"
#include "octavo/train/run_lock.h"

namespace octavo::app {
namespace {

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// " [8]"; nothing for texts that are empty and for sizes, which come from the preset.
std::string default_text(const train::ConfigKey& key) {
  if (key.name != "preset" && (key.group == "Model" || key.group == "Mixture of experts"))
    return "";
  const nlohmann::json value = key.get(train::TrainConfig{});
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (value.is_array()) {
    text.clear();
    for (const nlohmann::json& entry : value)
      text += (text.empty() ? "" : ",") + entry.get<std::string>();
  }
  return text.empty() ? "" : " [" + text + "]";
}

}  // namespace

train::TrainConfig ConfigOptions::make(const std::vector<train::ConfigSetting>& base) const {
  std::vector<train::ConfigSetting> all = base;
  if (file) {
    const auto from_file = train::read_config_file(*file);
    all.insert(all.end(), from_file.begin(), from_file.end());
  }
  // A checkpoint's own settings (base) hold the sizes that its init gave.
  std::string init;
  const auto look = [&init](const train::ConfigSetting& setting) {
    if (setting.key != "init") return;
    const nlohmann::json value = nlohmann::json::parse(setting.json);
    if (value.is_string()) init = value.get<std::string>();
  };
  std::for_each(all.begin() + static_cast<std::ptrdiff_t>(base.size()), all.end(), look);
  std::for_each(settings.begin(), settings.end(), look);
  if (!init.empty()) {
    const auto sizes = train::init_settings(init);
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(base.size()), sizes.begin(), sizes.end());
  }
  all.insert(all.end(), settings.begin(), settings.end());
  return train::make_config(all);
}

void add_config_file_option(CLI::App& command, ConfigOptions& options) {
  command
      .add_option_function<std::string>(
          "--config", [&options](const std::string& path) { options.file = path; },
          "JSON file of keys; options below override it")
      ->type_name("FILE");
}

void add_config_options(CLI::App& command, ConfigOptions& options,
                        const std::vector<std::string>& names) {
  for (const train::ConfigKey& key : train::config_keys()) {
    if (!names.empty() && std::find(names.begin(), names.end(), key.name) == names.end()) continue;
    const bool is_switch = key.type == "true|false";
    command
        .add_option_function<std::string>(
            "--" + with_dashes(key.name),
            [&options, name = key.name, is_switch](const std::string& text) {
              const std::string value = is_switch && text.empty() ? "true" : text;
              options.settings.push_back(train::setting_from_text(name, value));
            },
            key.doc + default_text(key))
        ->type_name(key.type)
        ->group(key.group)
        ->expected(is_switch ? 0 : 1, 1);
  }
}

void prepare_run_dir(const train::TrainConfig& config, ExistingRun existing) {
  const std::filesystem::path run_dir = config.run_dir;
  train::check_run_dir(run_dir);
  TORCH_CHECK(!train::read_json(run_dir / "summary.json").value.is_array(),
              "run_dir: ", config.run_dir,
              " holds a comparison (its summary.json is the table of octavo compare); name another "
              "folder with --run-dir, or remove that one");
  if (config.resume) return;
  if (existing == ExistingRun::kOverwrite) {
    train::open_data(config);            // its errors come before anything is removed
    const train::RunLock lock(run_dir);  // and so does a run that still writes here
    for (const char* name : {"checkpoints", "metrics.jsonl", "summary.json"})
      std::filesystem::remove_all(run_dir / name);
    std::filesystem::remove_all(train::gemm_plans_path(config));
    return;
  }
  const auto newest = train::newest_checkpoint(run_dir);
  TORCH_CHECK(!newest, "run_dir: ", config.run_dir, " holds a run already (",
              newest->filename().string(),
              "); add --resume to go on with it, --overwrite to replace it, or name another with "
              "--run-dir");
}

std::string quoted_value(const std::string& text) {
  constexpr std::size_t kShown = 40;
  if (text.size() <= kShown) return "'" + text + "'";
  return "'" + text.substr(0, kShown) + "...' (" + std::to_string(text.size()) + " characters)";
}

std::vector<std::string> split_recipes(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else if (c != ' ') {
      parts.back() += c;
    }
  }
  std::erase(parts, "");
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    TORCH_CHECK(std::find(parts.begin(), part, *part) == part, "--recipes: ", *part,
                " is given twice; name it once");
  }
  return parts;
}

std::vector<std::string> normalise_arguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    const auto end = argument.begin() +
                     static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
    std::replace(argument.begin(), end, '_', '-');
  }
  return arguments;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (!command->parsed()) continue;
    for (const std::string& name : option_names(*command)) names.push_back(name);
  }
  return names;
}

}  // namespace octavo::app
