#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "octavo/train/config.h"

// What the subcommands share. Each lives in <name>_command.cpp and adds itself to the app.
namespace octavo::app {

void add_train_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_recipes_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_baseline_command(CLI::App& app);
void add_export_command(CLI::App& app);

/// Where the options of one command put what they read.
struct ConfigOptions {
  std::optional<std::string> file;             ///< --config
  std::vector<train::ConfigSetting> settings;  ///< options, in the order given

  /// Defaults, preset, `base`, the sizes of the folder that the file or the options name in init,
  /// the file, then the options.
  train::TrainConfig make(const std::vector<train::ConfigSetting>& base = {}) const;
};

/// Adds an option --name for each key (all where `names` is empty), grouped and documented from the
/// table of keys; --resume and other true|false keys may stand without a value. An option that is
/// given twice is a usage error, as everywhere in the command.
void add_config_options(CLI::App& command, ConfigOptions& options,
                        const std::vector<std::string>& names = {});
/// Adds --config FILE.
void add_config_file_option(CLI::App& command, ConfigOptions& options);

/// `text`, quoted, cut with its length beside it where it is long.
std::string quoted_value(const std::string& text);

/// `text` as a number from `low` to `high`, as `option` wants it. A usage error otherwise: digits
/// left over, out of range, NaN.
template <class T>
T parse_number(const std::string& option, const std::string& text, T low, T high) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stopped == end && value >= low && value <= high) return value;
  std::ostringstream expected;
  expected << "expected " << (std::is_integral_v<T> ? "an integer" : "a number") << " from " << low
           << " to " << high << ", got " << quoted_value(text);
  throw CLI::ValidationError(option, expected.str());
}

/// Adds an option that takes one number from `low` to `high`; `value` holds the default.
template <class T>
CLI::Option* add_number_option(CLI::App& command, const std::string& option, T& value, T low,
                               T high, const std::string& help) {
  std::ostringstream shown;
  shown << value;
  return command
      .add_option_function<std::string>(
          option,
          [&value, option, low, high](const std::string& text) {
            value = parse_number<T>(option, text, low, high);
          },
          help)
      ->type_name(std::is_integral_v<T> ? "INTEGER" : "NUMBER")
      ->default_str(shown.str());
}

/// What happens to a run that run_dir holds already.
enum class ExistingRun : std::uint8_t { kRefuse, kOverwrite };

/// Makes way for one run in config.run_dir. Where that holds a checkpoint and config.resume is off:
/// an error that names --resume and --overwrite, or with kOverwrite removes what octavo left there
/// (checkpoints/, metrics.jsonl, summary.json, gemm_plans.txt) and nothing else, once the data is
/// known to open. A folder that holds a comparison is an error whatever is asked: the run's
/// summary.json would replace the table's.
void prepare_run_dir(const train::TrainConfig& config, ExistingRun existing);

/// The recipes of a list separated by commas; those inside a recipe's brackets do not separate. One
/// that is named twice is an error.
std::vector<std::string> split_recipes(const std::string& text);

/// Rows of equal length, the first the heading; columns padded to their widest cell, text left and
/// numbers right-aligned, a rule under the heading.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

/// `value` with that many decimals.
std::string fixed(double value, int decimals);
/// "12.3 MiB".
std::string bytes_text(double bytes);

/// argv without its first entry, with the underscores of option names (--run_dir=a_b) turned into
/// dashes: each key has one spelling for the parser and two for the user.
std::vector<std::string> normalise_arguments(int argc, char** argv);

/// Every option name of `app` and its subcommands that fits an unknown argument, for "did you
/// mean".
std::vector<std::string> option_names(const CLI::App& app);

}  // namespace octavo::app
