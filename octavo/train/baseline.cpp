#include "octavo/train/baseline.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <torch/version.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "octavo/train/run_header.h"
#include "octavo/train/trainer.h"

namespace octavo::train {

namespace {

constexpr char kFirstLine[] = "octavo loss baseline 1";

// FNV-1a, for a short fingerprint of the processor's features.
std::string fingerprint(const std::string& text) {
  std::uint32_t hash = 2166136261u;
  for (unsigned char c : text) hash = (hash ^ c) * 16777619u;
  char hex[9];
  std::snprintf(hex, sizeof(hex), "%08x", hash);
  return hex;
}

std::string processor_in_full() {
  std::ifstream info("/proc/cpuinfo");
  std::map<std::string, std::string> fields;  // of the first processor
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const std::size_t tab = line.find('\t'), colon = line.find(": ");
    if (tab != std::string::npos && colon != std::string::npos) {
      fields[line.substr(0, tab)] = line.substr(colon + 2);
    }
  }
  std::string text = processor_name();
  for (const char* key : {"cpu family", "model", "stepping", "cache size"}) {
    text += std::string(", ") + key + " " + fields[key];
  }
  return text + ", flags " + fingerprint(fields["flags"]);
}

std::string mkl_environment() {
  std::string text;
  for (const char* name : {"MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE"}) {
    const char* value = std::getenv(name);
    if (value) text += (text.empty() ? "" : " ") + std::string(name) + "=" + value;
  }
  return text.empty() ? "default" : text;
}

std::string hexadecimal(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%a", value);
  return text;
}

double number(const std::string& text, const std::filesystem::path& path) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  TORCH_CHECK(!text.empty() && *end == '\0', "baseline: '", path.string(), "' holds '", text,
              "' where a hexadecimal float should be; write it anew");
  return value;
}

// What of the configuration decides the losses, in one line.
std::string run_of(const TrainConfig& config) {
  std::ostringstream run;
  const models::LlamaConfig& m = config.model;
  run << config.recipe << " flavour " << config.flavour << " V " << m.vocabulary << " D " << m.dim
      << " layers " << m.layers << " H " << m.heads << "/" << m.kv_heads << " F " << m.hidden
      << " B " << config.batch << " T " << config.sequence << " accumulation "
      << config.accumulation << " steps " << config.steps << " lr " << config.lr << " seed "
      << config.seed << " validation " << config.validation_batches << " text "
      << std::filesystem::path(config.train_data).filename().string();
  return run.str();
}

// A folder of its own that goes away with the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "octavo_baseline_XXXXXX");
    TORCH_CHECK(::mkdtemp(pattern.data()) != nullptr, "baseline: cannot make a folder like '",
                pattern, "'; set TMPDIR to a folder with space");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class ThreadsScope {
 public:
  ThreadsScope() : threads_(at::get_num_threads()) {}
  ~ThreadsScope() { at::set_num_threads(threads_); }

 private:
  int threads_;
};

}  // namespace

// Preliminary values, replaced by measured ones below.
const BaselineBand kBaselineBand{.high_precision = 1e-5, .fp8 = 2e-3};

BaselineMachine this_machine() {
  return {.torch = TORCH_VERSION,
          .processor = processor_in_full(),
          .capability = cpu_capability(),
          .mkl = mkl_environment(),
          .threads = at::get_num_threads()};
}

std::vector<BaselineCase> baseline_cases() {
  std::vector<BaselineCase> cases = {{"high_precision", "high_precision", "auto"}};
  for (const std::string& recipe : recipe_names()) {
    for (const char* flavour : {"ocp", "fnuz"}) {
      if (recipe == "mxfp8" && flavour == std::string("fnuz")) continue;  // MX is OCP only
      cases.push_back({recipe + "_" + flavour, recipe, flavour});
    }
  }
  return cases;
}

TrainConfig baseline_config(const BaselineCase& which, const std::string& text) {
  TrainConfig config;
  config.model.vocabulary = 256;
  config.model.dim = 80;
  config.model.layers = 2;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.hidden = 208;
  config.model.max_sequence = 64;
  config.recipe = which.recipe;
  config.flavour = which.flavour;
  config.seed = 20;
  config.train_data = text;
  config.batch = 4;
  config.sequence = 48;
  config.accumulation = 2;
  config.steps = 30;
  config.lr = 5e-3;
  config.warmup_steps = 5;
  config.validation_batches = 8;
  return config;
}

Baseline run_baseline(const BaselineCase& which, const std::string& text, std::int64_t threads) {
  const TemporaryFolder folder;
  const ThreadsScope scope;
  TrainConfig config = baseline_config(which, text);
  config.run_dir = folder.path();
  config.threads = threads;
  Trainer trainer(config);
  const TrainResult result = trainer.run();
  TORCH_CHECK(!result.interrupted, "baseline: the run was interrupted; nothing to compare");
  return {.machine = this_machine(),
          .run = run_of(config),
          .losses = result.losses,
          .validation_loss = result.validation_loss};
}

void write_baseline(const std::filesystem::path& path, const Baseline& baseline) {
  std::ofstream file(path);
  file << kFirstLine << "\n"
       << "torch " << baseline.machine.torch << "\n"
       << "processor " << baseline.machine.processor << "\n"
       << "capability " << baseline.machine.capability << "\n"
       << "mkl " << baseline.machine.mkl << "\n"
       << "threads " << baseline.machine.threads << "\n"
       << "run " << baseline.run << "\n"
       << "validation_loss " << hexadecimal(baseline.validation_loss) << "\n"
       << "losses " << baseline.losses.size() << "\n";
  for (double loss : baseline.losses) file << hexadecimal(loss) << "\n";
  file.close();
  TORCH_CHECK(file, "baseline: cannot write '", path.string(),
              "'; check that the folder exists and "
              "has space");
}

Baseline read_baseline(const std::filesystem::path& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "baseline: cannot read '", path.string(),
              "'; make it with: octavo baseline write");
  std::string line;
  std::getline(file, line);
  TORCH_CHECK(line == kFirstLine, "baseline: '", path.string(), "' begins with '", line,
              "', expected '", kFirstLine, "'");
  std::map<std::string, std::string> fields;
  while (!fields.contains("losses") && std::getline(file, line)) {
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) fields[line.substr(0, space)] = line.substr(space + 1);
  }
  for (const char* key :
       {"torch", "processor", "capability", "mkl", "threads", "run", "validation_loss", "losses"}) {
    TORCH_CHECK(fields.contains(key), "baseline: '", path.string(), "' has no line '", key,
                "'; it is truncated: write it anew");
  }
  Baseline baseline{.machine = {.torch = fields["torch"],
                                .processor = fields["processor"],
                                .capability = fields["capability"],
                                .mkl = fields["mkl"],
                                .threads = std::atoll(fields["threads"].c_str())},
                    .run = fields["run"],
                    .losses = {},
                    .validation_loss = number(fields["validation_loss"], path)};
  const std::size_t count = static_cast<std::size_t>(std::atoll(fields["losses"].c_str()));
  while (std::getline(file, line)) baseline.losses.push_back(number(line, path));
  TORCH_CHECK(baseline.losses.size() == count, "baseline: '", path.string(), "' should hold ",
              count, " losses, has ", baseline.losses.size(), "; it is truncated: write it anew");
  return baseline;
}

BaselineComparison compare_baselines(const BaselineCase& which, const Baseline& expected,
                                     const Baseline& actual) {
  BaselineComparison result;
  std::ostringstream message;
  message << which.name << ": ";
  if (expected.run != actual.run || expected.losses.size() != actual.losses.size()) {
    message << "another run: the file has '" << expected.run << "', this build '" << actual.run
            << "'; write the baselines anew";
    result.message = message.str();
    return result;
  }
  result.equality_claimed = expected.machine == actual.machine;
  result.equal = expected.validation_loss == actual.validation_loss;
  std::size_t first = expected.losses.size();  // step (0 is the first) that differs first
  const auto compare = [&](double want, double got) {
    const double difference = std::abs(got - want) / std::abs(want);
    // Written so that NaN stays.
    if (!(difference <= result.largest_difference)) result.largest_difference = difference;
  };
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    if (expected.losses[i] != actual.losses[i]) {
      result.equal = false;
      first = std::min(first, i);
    }
    if (!std::isnan(result.largest_difference)) compare(expected.losses[i], actual.losses[i]);
  }
  if (!std::isnan(result.largest_difference)) {
    compare(expected.validation_loss, actual.validation_loss);
  }
  const double band =
      which.recipe == "high_precision" ? kBaselineBand.high_precision : kBaselineBand.fp8;
  const bool within = result.largest_difference <= band;
  result.passed = result.equality_claimed ? result.equal : within;
  if (result.equal) {
    message << "equal";
  } else {
    message << "largest relative difference " << result.largest_difference;
    if (first < expected.losses.size()) message << ", first at step " << first + 1;
  }
  message << (result.equality_claimed ? " (same machine: must be equal)"
                                      : " (another machine: must be within ");
  if (!result.equality_claimed) message << band << ")";
  result.message = message.str();
  return result;
}

}  // namespace octavo::train
