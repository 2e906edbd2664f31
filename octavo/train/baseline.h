#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "octavo/train/config.h"

namespace octavo::train {

// Loss baselines: the losses of short training runs, one file a recipe and flavour, that every
// build is compared with. A change that should not alter numbers must leave them equal.

/// What decides whether two runs must agree bit for bit: LibTorch and its instruction set, the
/// processor (MKL chooses its kernels and blocking by it) and the number of threads.
struct BaselineMachine {
  std::string torch;       ///< "2.11.0"
  std::string processor;   ///< name, family, model, stepping, cache and a hash of its features
  std::string capability;  ///< LibTorch's: "AVX2", "AVX512", "DEFAULT"
  std::string mkl;         ///< MKL_CBWR and the like where set, otherwise "default"
  std::int64_t threads = 1;

  friend bool operator==(const BaselineMachine&, const BaselineMachine&) = default;
};
BaselineMachine this_machine();

struct Baseline {
  BaselineMachine machine;
  std::string run;             ///< the configuration in short: what must be the same
  std::vector<double> losses;  ///< one a step
  double validation_loss = 0.0;
};

/// One file: recipe and flavour. Its stem is name ("rowwise_fnuz", "high_precision").
struct BaselineCase {
  std::string name;
  std::string recipe;
  std::string flavour;
};

/// High precision, then every recipe in both flavours (mxfp8 in OCP).
std::vector<BaselineCase> baseline_cases();

/// A small run whose linears have sizes that are no multiple of 128, so that every recipe meets
/// partial blocks. `text` is the file to train on (examples/data/tinyshakespeare.txt).
TrainConfig baseline_config(const BaselineCase& which, const std::string& text);

/// Trains in a temporary folder, on `threads` threads (0: LibTorch's choice).
Baseline run_baseline(const BaselineCase& which, const std::string& text, std::int64_t threads = 1);

/// A text file: header lines "key value", then one loss a line as a hexadecimal float.
/// Errors name the file: cannot be read or written, another format, truncated.
void write_baseline(const std::filesystem::path& path, const Baseline& baseline);
Baseline read_baseline(const std::filesystem::path& path);

/// How far losses may be apart on unlike machines, relative to the file's.
///
/// Another processor, LibTorch or MKL adds up the sums of a product in another order. In high
/// precision that stays a difference of fp32's rounding. Under a recipe a value that lay beside a
/// rounding boundary of its FP8 format falls to the other side, a sixteenth to an eighth of it
/// away, and what training makes of that grows with the steps: more for one step's loss than for
/// the validation loss, a mean over many tokens. So the first steps are held closely: what breaks a
/// recipe shows there. Each band is 3 to 7 times the largest difference measured in
/// docs/experiments/2026-11-29-loss-baselines.md.
struct BaselineBand {
  double early;       ///< the first kEarlySteps steps
  double late;        ///< later steps
  double validation;  ///< the validation loss
};
inline constexpr std::int64_t kEarlySteps = 10;
inline constexpr BaselineBand kHighPrecisionBand{.early = 1e-5, .late = 1e-5, .validation = 1e-5};
inline constexpr BaselineBand kFloat8Band{.early = 2e-4, .late = 5e-2, .validation = 8e-3};

/// The band of `which`: kHighPrecisionBand or kFloat8Band.
const BaselineBand& baseline_band(const BaselineCase& which);

struct BaselineComparison {
  bool passed = false;
  bool equality_claimed = false;    ///< the machines are the same
  bool equal = false;               ///< every loss has the same bits
  double largest_difference = 0.0;  ///< relative, over steps and validation; NaN where one is
  std::string message;              ///< one line that says all this
};

/// Equal bits where the machines are the same; otherwise every loss within baseline_band(). A run
/// of another configuration does not pass, and the message names the keys. NaN never passes.
BaselineComparison compare_baselines(const BaselineCase& which, const Baseline& expected,
                                     const Baseline& actual);

}  // namespace octavo::train
