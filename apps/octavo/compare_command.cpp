#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/octavo/command.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/data.h"
#include "octavo/train/json_file.h"
#include "octavo/train/metrics.h"
#include "octavo/train/run_lock.h"
#include "octavo/train/trainer.h"

namespace octavo::app {
namespace {

constexpr const char* kDefaultRecipes =
    "high_precision,tensorwise,rowwise,rowwise_with_gw_hp,blockwise,mxfp8,tensorwise:fnuz,"
    "rowwise:fnuz";

// Experts take no tensorwise recipe.
constexpr const char* kDefaultExpertRecipes =
    "high_precision,rowwise,rowwise_with_gw_hp,blockwise,mxfp8,rowwise:fnuz,blockwise:fnuz";

struct Entry {
  std::string label;  ///< recipe and flavour as a folder's name
  train::TrainConfig config;
};

std::string folder_name(const train::TrainConfig& config) {
  const std::optional<Recipe> recipe = train::training_recipe(config);
  std::string name = recipe ? recipe->to_string() : "high_precision";
  // "rowwise(flavour=fnuz)" becomes "rowwise-flavour-fnuz".
  std::string out;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      out += c;
    } else if (!out.empty() && out.back() != '-' && c != ')') {
      out += '-';
    }
  }
  return out;
}

// Every entry's configuration, high precision first (added where the list lacks it: gaps are
// measured against it). All are checked before the first run begins.
std::vector<Entry> make_entries(const train::TrainConfig& base, const std::string& list) {
  std::vector<std::string> texts = split_recipes(list);
  std::erase(texts, "high_precision");
  texts.insert(texts.begin(), "high_precision");
  TORCH_CHECK(texts.size() > 1,
              "--recipes: expected at least one recipe beside high_precision, such as "
              "rowwise,mxfp8,rowwise:fnuz");
  std::vector<Entry> entries;
  std::set<std::string> labels;
  for (const std::string& text : texts) {
    const std::size_t colon = text.find(':');
    Entry entry{"", base};
    entry.config.recipe = text.substr(0, colon);
    entry.config.flavour = colon == std::string::npos ? "auto" : text.substr(colon + 1);
    train::validate(entry.config);
    entry.label = folder_name(entry.config);
    TORCH_CHECK(labels.insert(entry.label).second, "--recipes: ", text,
                " is the same as one before it; name it once");
    entry.config.run_dir = (std::filesystem::path(base.run_dir) / entry.label).string();
    entries.push_back(std::move(entry));
  }
  return entries;
}

double gap_percent(const train::TrainResult& result, const train::TrainResult& high_precision) {
  return 100.0 * (result.validation_loss / high_precision.validation_loss - 1.0);
}

// What others read: these names, in this order.
nlohmann::ordered_json summary_of(const std::vector<train::TrainResult>& results) {
  nlohmann::ordered_json summary = nlohmann::ordered_json::array();
  for (const train::TrainResult& result : results) {
    summary.push_back({{"recipe", result.recipe},
                       {"flavour", result.flavour},
                       {"layers_converted", result.layers_converted},
                       {"validation_loss", result.validation_loss},
                       {"gap_percent", gap_percent(result, results[0])},
                       {"seconds_per_step", result.seconds_per_step}});
  }
  return summary;
}

std::string table_of(const std::vector<train::TrainResult>& results) {
  std::vector<std::vector<std::string>> rows = {
      {"recipe", "flavour", "FP8 layers", "validation loss", "gap %", "s/step", "ratio"}};
  for (const train::TrainResult& result : results) {
    const double ratio = result.seconds_per_step / results[0].seconds_per_step;
    rows.push_back(
        {result.recipe, result.flavour,
         std::to_string(result.layers_converted) + " of " + std::to_string(result.layers_total),
         fixed(result.validation_loss, 4), fixed(gap_percent(result, results[0]), 2),
         fixed(result.seconds_per_step, 4), fixed(ratio, 2)});
  }
  return format_table(rows);
}

// The first key whose value keeps a run that is there from standing for the one asked for; empty
// where there is none. Time per step depends on the threads, but a run's summary has those it used.
std::string other_setting(const train::TrainConfig& there, const train::TrainConfig& asked) {
  static const std::set<std::string> kFree = {"run_dir",          "resume",  "log_every",
                                              "resume_step",      "plan",    "keep_checkpoints",
                                              "checkpoint_every", "threads", "fp8_stats"};
  for (const train::ConfigKey& key : train::config_keys()) {
    const nlohmann::json was = key.get(there), is = key.get(asked);
    if (was != is && !kFree.contains(key.name))
      return "has " + key.name + " " + was.dump() + ", asked for " + is.dump();
  }
  return "";
}

// The summary of a run that has done all its steps, or why it cannot be used.
std::string read_finished(const train::TrainConfig& config, train::TrainResult& result) {
  const nlohmann::json summary =
      train::read_json(std::filesystem::path(config.run_dir) / "summary.json").value;
  if (!summary.is_object() || summary.value("steps", std::int64_t{-1}) != config.steps ||
      !summary.contains("validation_loss") || !summary["validation_loss"].is_number() ||
      !summary.contains("seconds_per_step") || !summary["seconds_per_step"].is_number() ||
      !(summary["seconds_per_step"].get<double>() > 0.0))
    return "has done its steps but has no summary of them";
  const std::int64_t threads = config.threads > 0 ? config.threads : at::get_num_threads();
  if (const auto was = summary.value("threads", std::int64_t{0}); was != threads)
    return "measured its time per step with " + std::to_string(was) + " threads, asked for " +
           std::to_string(threads);
  result.recipe = summary.value("recipe", "");
  result.flavour = summary.value("flavour", "");
  result.layers_converted = summary.value("layers_converted", std::int64_t{0});
  result.layers_total = summary.value("layers_total", std::int64_t{0});
  result.validation_loss = summary["validation_loss"].get<double>();
  result.seconds_per_step = summary["seconds_per_step"].get<double>();
  return "";
}

// With --resume a run of the same settings that has its summary is not run again: the figures of
// its time per step are in that summary only. One that cannot stand for the run asked for is an
// error, because going on with it would put figures of two kinds into one table.
std::optional<train::TrainResult> finished_result(const train::TrainConfig& config) {
  if (!config.resume) return std::nullopt;
  const auto newest = train::newest_checkpoint(config.run_dir);
  if (!newest) return std::nullopt;
  const train::CheckpointState state = train::load_checkpoint_model(*newest);
  train::TrainResult result;
  std::string why = other_setting(state.config, config);
  if (why.empty() && state.step < config.steps) return std::nullopt;
  if (why.empty()) why = read_finished(config, result);
  TORCH_CHECK(why.empty(), "compare: the run in ", config.run_dir, " ", why, "; remove ",
              config.run_dir, " and resume again, or give --overwrite instead of --resume");
  return result;
}

train::TrainResult run_entry(const train::TrainConfig& config) {
  if (const auto finished = finished_result(config)) {
    std::cout << "finished before; its summary is in " << config.run_dir << std::endl;
    return *finished;
  }
  train::Trainer trainer(config, {.log = &std::cout});
  const train::TrainResult result = trainer.run();
  if (result.interrupted) throw CLI::RuntimeError(130);
  return result;
}

// Before anything is removed or run: data that opens, a folder that is no single run's (its
// metrics.jsonl would pass for the comparison's), no run in the way.
void check_run_dirs(const train::TrainConfig& base, const std::vector<Entry>& entries,
                    ExistingRun existing) {
  const std::filesystem::path run_dir = base.run_dir;
  train::check_run_dir(run_dir);
  TORCH_CHECK(
      !std::filesystem::exists(run_dir / "metrics.jsonl") && !train::newest_checkpoint(run_dir),
      "run_dir: ", base.run_dir,
      " holds the run of one recipe; name another folder with --run-dir, or remove that one");
  train::open_data(base);
  if (existing == ExistingRun::kOverwrite) return;
  for (const Entry& entry : entries) prepare_run_dir(entry.config, existing);
}

void compare(const train::TrainConfig& base, const std::string& list, ExistingRun existing) {
  TORCH_CHECK(base.flavour == "auto", "flavour: compare takes it with each recipe, got '",
              base.flavour, "' for all; write --recipes tensorwise:", base.flavour,
              " and leave flavour out");
  TORCH_CHECK(base.resume_step == 0, "resume_step: is one run's, got ", base.resume_step,
              "; go on with that run by octavo train, then --resume the comparison");
  const std::vector<Entry> entries = make_entries(base, list);
  check_run_dirs(base, entries, existing);
  const std::filesystem::path run_dir = base.run_dir, summary_path = run_dir / "summary.json";
  // What tells of the runs before goes first, each of those runs only when its turn has come.
  if (existing == ExistingRun::kOverwrite && !base.resume) {
    for (const char* name : {"summary.json", "losses.png"}) std::filesystem::remove(run_dir / name);
  }
  std::vector<train::TrainResult> results;
  for (const Entry& entry : entries) {
    std::cout << "== " << entry.label << " (" << results.size() + 1 << " of " << entries.size()
              << ") ==" << std::endl;
    prepare_run_dir(entry.config, existing);
    results.push_back(run_entry(entry.config));
    // After every run, so that one that fails leaves the others' figures.
    train::write_json(summary_path, summary_of(results));
    std::cout << std::endl;
  }
  std::cout << table_of(results)
            << "\nSame data, seed and steps. FP8 layers: linears and experts converted of all. "
               "Validation in nats per token,\nthe recipe as trained; gap and ratio against "
               "high_precision.\nWrote "
            << summary_path.string() << std::endl;
}

}  // namespace

void add_compare_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("compare", "run one configuration in several recipes and print a table");
  struct CompareOptions {
    ConfigOptions config;
    std::string recipes;
    bool overwrite = false;
  };
  const auto options = std::make_shared<CompareOptions>();
  add_config_file_option(*command, options->config);
  command
      ->add_option(
          "--recipes", options->recipes,
          std::string("recipes separated by commas, each with :ocp or :fnuz where wanted [") +
              kDefaultRecipes + "; for a model with experts " + kDefaultExpertRecipes + "]")
      ->type_name("LIST");
  command->add_flag("--overwrite", options->overwrite,
                    "replace the runs that are there, one by one");
  add_config_options(*command, options->config);
  command->callback([options] {
    // One in the file is train's; one given here would be left out without a word.
    for (const train::ConfigSetting& setting : options->config.settings) {
      TORCH_CHECK(setting.key != "recipe", "--recipe: compare takes a list, got ", setting.json,
                  "; give --recipes with it");
    }
    const train::TrainConfig config = options->config.make();
    const bool has_experts = config.model.moe.experts > 0;
    compare(config,
            !options->recipes.empty() ? options->recipes
            : has_experts             ? kDefaultExpertRecipes
                                      : kDefaultRecipes,
            options->overwrite ? ExistingRun::kOverwrite : ExistingRun::kRefuse);
  });
}

}  // namespace octavo::app
