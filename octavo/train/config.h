#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/models/llama_config.h"
#include "octavo/recipe/recipe.h"

namespace octavo::train {

/// More threads than any machine gains from, and few enough for a system to start.
inline constexpr int kMostThreads = 1024;

/// Everything a run depends on. Each field is a key of the config file (JSON, flat) and an option
/// of the command (--key value); config_keys.cpp holds the one table that names, documents and
/// checks them all, from which help, the checkpoint's state.json and the errors are printed.
struct TrainConfig {
  // What is trained
  std::string preset = "debug";  ///< sizes before the model keys below override them
  /// Keys: vocabulary, dim, layers, heads, ..., and those of its mixture of experts; what kind of
  /// model it is follows from `experts`: 0 is a dense Llama.
  models::LlamaConfig model;
  std::string init;  ///< folder whose weights training begins with; empty: random ones
  std::string recipe = "high_precision";  ///< or a Recipe string
  std::string flavour = "auto";           ///< auto, ocp, fnuz
  std::vector<std::string> filter_fqns = {"lm_head"};
  std::vector<std::string> select_fqns = {};  ///< empty: all that filter_fqns leaves
  bool allow_unmatched_filters = false;
  models::ActivationCheckpointing activation_checkpointing = models::ActivationCheckpointing::kNone;
  std::string dtype = "float32";  ///< parameters and activations: float32 or bfloat16
  bool master_weights = false;    ///< AdamW keeps fp32 weights and moments; dtype is bfloat16
  bool weight_cache = false;      ///< weights are quantised once a step, not once a micro-batch
  std::string keep_weight_transposed = "auto";  ///< Float8Layer's: auto, on or off
  bool fusion = true;                           ///< FP8 layers that are alike run as one operation
  std::string device = "cpu";
  bool gradients_in_place = true;    ///< of head, embedding and plain linears, on a GPU
  bool deterministic = false;        ///< LibTorch's own backwards too, at some cost on a GPU
  bool cuda_graph = false;           ///< a whole step is captured after two eager ones and replayed
  std::string gemm_tuning = "auto";  ///< measure, heuristic; auto: OCTAVO_GEMM_TUNING or measure
  std::string plan;                  ///< a run's gemm_plans.txt whose algorithms are used
  std::uint64_t seed = 1;

  // Data: text files are read as bytes, .bin files and folders of them are token shards
  std::string train_data;
  std::string validation_data;  ///< empty: the last validation_fraction of train_data
  double validation_fraction = 0.1;
  std::int64_t batch = 8;         ///< B, sequences per micro-batch
  std::int64_t sequence = 128;    ///< T
  std::int64_t accumulation = 1;  ///< micro-batches per step

  // Optimisation: AdamW, linear warm-up, cosine to min_lr_fraction
  std::int64_t steps = 200;
  double lr = 3e-3;
  double min_lr_fraction = 0.1;
  std::int64_t warmup_steps = 20;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  ///< 0: no clipping

  // Run
  std::string run_dir = "runs/default";
  std::int64_t validate_every = 0;      ///< steps; 0: only at the end
  std::int64_t validation_batches = 0;  ///< 0: all of the validation data
  std::int64_t checkpoint_every = 0;    ///< steps; 0: only at the end
  std::int64_t keep_checkpoints = 2;
  bool resume = false;           ///< from the newest checkpoint in run_dir
  std::int64_t resume_step = 0;  ///< from that step's instead; 0: the newest
  std::int64_t log_every = 10;
  std::int64_t fp8_stats = 0;           ///< steps between samples of FP8 health; 0: none
  std::int64_t threads = 0;             ///< 0: LibTorch's choice
  std::string eval_recipe = "trained";  ///< or high_precision
};

/// One key of the configuration: a row of the table in config_keys.cpp.
struct ConfigKey {
  std::string name;   ///< as in the config file; the option is --name, dashes or underscores
  std::string group;  ///< "Model", "Mixture of experts", "Precision", "Data", "Optimisation", "Run"
  std::string type;   ///< "integer", "number", "text", "true|false", "list"
  std::string doc;    ///< one line
  std::function<nlohmann::json(const TrainConfig&)> get;
  /// Sets the field; an error names the key, the value and the type expected.
  std::function<void(TrainConfig&, const nlohmann::json&)> set;
  std::string rule;    ///< what a valid value keeps ("at least 1"); empty: every value is valid
  std::string repair;  ///< ends the message about a value that does not: "; set ..."
  std::function<bool(const TrainConfig&)> valid;  ///< whether the config's value keeps the rule
};

/// Every key, in the order help prints them.
const std::vector<ConfigKey>& config_keys();

/// The key of that name (dashes count as underscores). An unknown name is an error that names the
/// nearest key; `source` says where it was read ("runs/a.json", "the command line").
const ConfigKey& config_key(std::string_view name, std::string_view source);

/// One value for one key, not yet applied.
struct ConfigSetting {
  std::string key;
  std::string json;    ///< the value as JSON text
  std::string source;  ///< for messages
};

/// The settings of a flat JSON object in a file. Errors: no such file, not JSON (with the line),
/// what read_json() refuses, not an object, an unknown key, a key given twice.
std::vector<ConfigSetting> read_config_file(const std::filesystem::path& path);

/// A setting from an option's text: numbers and true|false as written, lists separated by commas.
/// An error: text that is not UTF-8.
ConfigSetting setting_from_text(std::string_view key, std::string_view text,
                                std::string_view source = "the command line");

/// Defaults, then the preset's sizes, then `settings` in order (later ones win; the preset is the
/// last one given). A resume_step sets resume. Checked by validate().
TrainConfig make_config(const std::vector<ConfigSetting>& settings);

/// An error naming the field, its value and the rule, for the first rule broken: ranges, sizes that
/// divide, known recipe, preset and flavour names.
void validate(const TrainConfig& config);

/// All keys as a flat JSON object, one a line, in the table's order; make_config() of it gives an
/// equal config.
std::string to_json(const TrainConfig& config);

/// Every key of `config` as a setting: what a checkpoint's configuration is overridden from.
std::vector<ConfigSetting> settings_of(const TrainConfig& config, std::string_view source);

/// The recipe the linears train with, `flavour` applied; none for "high_precision". Errors: unknown
/// recipe (names the known ones), flavour against the recipe's own.
std::optional<Recipe> training_recipe(const TrainConfig& config);

}  // namespace octavo::train
