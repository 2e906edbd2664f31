#include <filesystem>
#include <iostream>
#include <memory>

#include "apps/octavo/command.h"
#include "octavo/recipe/nearest.h"
#include "octavo/train/baseline.h"

namespace octavo::app {
namespace {

struct BaselineOptions {
  std::string folder = "tests/loss_baselines";
  std::string text = "examples/data/tinyshakespeare.txt";
  std::vector<std::string> only;
  std::int64_t threads = 1;
};

std::vector<train::BaselineCase> chosen_cases(const BaselineOptions& options) {
  std::vector<train::BaselineCase> chosen = train::baseline_cases();
  if (options.only.empty()) return chosen;
  std::vector<std::string> names;
  for (const train::BaselineCase& which : chosen) names.push_back(which.name);
  for (const std::string& name : options.only)
    TORCH_CHECK(std::find(names.begin(), names.end(), name) != names.end(),
                "--only: no baseline \"", name, "\"", did_you_mean(name, names),
                "; known: ", join(names));
  std::erase_if(chosen, [&](const train::BaselineCase& which) {
    return std::find(options.only.begin(), options.only.end(), which.name) == options.only.end();
  });
  return chosen;
}

std::filesystem::path path_of(const BaselineOptions& options, const train::BaselineCase& which) {
  return std::filesystem::path(options.folder) / (which.name + ".txt");
}

void check(const BaselineOptions& options) {
  std::string failed;
  for (const train::BaselineCase& which : chosen_cases(options)) {
    const train::Baseline expected = train::read_baseline(path_of(options, which));
    const train::Baseline actual = train::run_baseline(which, options.text, options.threads);
    const train::BaselineComparison result = train::compare_baselines(which, expected, actual);
    std::cout << (result.passed ? "ok      " : "FAILED  ") << result.message << std::endl;
    if (!result.passed) failed += (failed.empty() ? "" : ", ") + which.name;
  }
  TORCH_CHECK(failed.empty(), "losses differ from the baselines: ", failed,
              "; find the change that did it, or where it is meant, octavo baseline write");
}

void write(const BaselineOptions& options) {
  std::filesystem::create_directories(options.folder);
  for (const train::BaselineCase& which : chosen_cases(options)) {
    const train::Baseline baseline = train::run_baseline(which, options.text, options.threads);
    train::write_baseline(path_of(options, which), baseline);
    std::cout << "wrote " << path_of(options, which).string() << std::endl;
  }
}

}  // namespace

void add_baseline_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("baseline", "compare this build's losses with the files of losses kept");
  command->require_subcommand(1);
  const auto options = std::make_shared<BaselineOptions>();
  const auto add = [&](const char* name, const char* help, void (*action)(const BaselineOptions&)) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("--folder", options->folder, "of the baselines")->capture_default_str();
    sub->add_option("--text", options->text, "to train on")->capture_default_str();
    sub->add_option("--only", options->only, "names of baselines, separated by commas")
        ->delimiter(',');
    add_number_option<std::int64_t>(*sub, "--threads", options->threads, 0, train::kMostThreads,
                                    "0: LibTorch's choice");
    sub->callback([options, action] { action(*options); });
  };
  add("check", "train each small run again and compare", check);
  add("write", "train each small run and write its losses", write);
}

}  // namespace octavo::app
