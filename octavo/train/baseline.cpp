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
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

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

// Every key that decides the losses with its value, as JSON on one line: a default that changes, or
// a key that is added, makes another run.
std::string run_of(const TrainConfig& config) {
  nlohmann::ordered_json run = nlohmann::ordered_json::parse(to_json(config));
  for (const char* key :
       {"run_dir", "resume", "resume_step", "log_every", "checkpoint_every", "keep_checkpoints",
        "threads", "gemm_tuning", "plan", "cuda_graph", "keep_weight_transposed"}) {
    TORCH_CHECK(run.erase(key) == 1, "baseline: no key '", key, "' in the configuration");
  }
  run["train_data"] = std::filesystem::path(config.train_data).filename().string();
  return run.dump();
}

// "lr: 0.005 in the file, 0.001 in this build; ..."
std::string run_differences(const std::string& expected, const std::string& actual) {
  const auto parsed = [](const std::string& text) {
    return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  };
  const nlohmann::json a = parsed(expected), b = parsed(actual);
  if (!a.is_object() || !b.is_object()) {
    return "'" + expected + "' in the file, '" + actual + "' in this build";
  }
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [key, value] : a.items()) values[key].first = value.dump();
  for (const auto& [key, value] : b.items()) values[key].second = value.dump();
  std::string text;
  for (const auto& [key, value] : values) {
    const auto& [was, is] = value;
    if (was == is) continue;
    text += (text.empty() ? "" : "; ") + key + ": " + (was.empty() ? "absent" : was) +
            " in the file, " + (is.empty() ? "absent" : is) + " in this build";
  }
  return text;
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

const BaselineBand& baseline_band(const BaselineCase& which) {
  return which.recipe == "high_precision" ? kHighPrecisionBand : kFloat8Band;
}

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
  config.steps = 120;
  config.lr = 1e-3;
  config.warmup_steps = 10;
  config.validation_batches = 64;
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
  if (expected.run != actual.run) {
    message << "another run: " << run_differences(expected.run, actual.run)
            << "; where that is meant, write the baselines anew";
    result.message = message.str();
    return result;
  }
  if (expected.losses.size() != actual.losses.size()) {
    message << expected.losses.size() << " losses in the file, " << actual.losses.size()
            << " in this build; write the baselines anew";
    result.message = message.str();
    return result;
  }
  const BaselineBand& band = baseline_band(which);
  result.equality_claimed = expected.machine == actual.machine;
  result.equal = true;
  bool within = true;
  std::string first_difference, first_outside;
  const auto compare = [&](double want, double got, double allowed, const std::string& place) {
    if (want != got && first_difference.empty()) first_difference = place;
    result.equal &= want == got;
    const double difference = std::abs(got - want) / std::abs(want);
    // Comparisons are written so that NaN is outside, and stays the largest.
    if (!(difference <= allowed)) {
      within = false;
      std::ostringstream outside;
      outside << place << ": " << difference << ", allowed " << allowed;
      if (first_outside.empty()) first_outside = outside.str();
    }
    if (std::isnan(result.largest_difference)) return;
    if (!(difference <= result.largest_difference)) result.largest_difference = difference;
  };
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    const bool early = static_cast<std::int64_t>(i) < kEarlySteps;
    compare(expected.losses[i], actual.losses[i], early ? band.early : band.late,
            "step " + std::to_string(i + 1));
  }
  compare(expected.validation_loss, actual.validation_loss, band.validation, "validation");
  result.passed = result.equality_claimed ? result.equal : within;
  if (result.equal) {
    message << "equal";
  } else {
    message << "largest relative difference " << result.largest_difference << ", first at "
            << first_difference;
  }
  if (result.equality_claimed) {
    message << " (same machine: must be equal)";
  } else if (within) {
    message << " (another machine: within the band)";
  } else {
    message << " (another machine: outside the band, first at " << first_outside << ")";
  }
  result.message = message.str();
  return result;
}

}  // namespace octavo::train
