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

/// How far losses may be apart on unlike machines, relative: see baseline.cpp for the
/// measurements behind it.
struct BaselineBand {
  double high_precision;
  double fp8;
};
extern const BaselineBand kBaselineBand;

struct BaselineComparison {
  bool passed = false;
  bool equality_claimed = false;    ///< the machines are the same
  bool equal = false;               ///< every loss has the same bits
  double largest_difference = 0.0;  ///< relative, over steps and validation; NaN where one is
  std::string message;              ///< one line that says all this
};

/// Equal bits where the machines are the same; otherwise every loss within the band. A run of
/// another configuration does not pass. NaN never passes.
BaselineComparison compare_baselines(const BaselineCase& which, const Baseline& expected,
                                     const Baseline& actual);

}  // namespace octavo::train
