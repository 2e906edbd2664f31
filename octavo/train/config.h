#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octavo/models/llama_config.h"

namespace octavo::train {

/// Everything a run depends on. Each field is a key of the config file (JSON, flat) and an option
/// of the command (--key value); config.cpp holds the one table that names, documents and checks
/// them all, from which help, `inspect`, the checkpoint's config.json and the errors are printed.
struct TrainConfig {
  // What is trained
  std::string preset = "debug";          ///< sizes before the model keys below override them
  models::LlamaConfig model;             ///< keys: vocabulary, dim, layers, heads, ...
  std::string recipe = "high_precision"; ///< or a Recipe string
  std::string flavour = "auto";          ///< auto, ocp, fnuz
  std::vector<std::string> filter_fqns = {"lm_head"};
  bool allow_unmatched_filters = false;
  bool activation_checkpointing = false;
  std::string dtype = "float32";         ///< parameters and activations: float32 or bfloat16
  std::string device = "cpu";
  std::uint64_t seed = 1;

  // Data: text files are read as bytes, .bin files are token shards
  std::string train_data;
  std::string validation_data;           ///< empty: the last validation_fraction of train_data
  double validation_fraction = 0.1;
  std::int64_t batch = 8;                ///< B, sequences per micro-batch
  std::int64_t sequence = 128;           ///< T
  std::int64_t accumulation = 1;         ///< micro-batches per step

  // Optimisation: AdamW, linear warm-up, cosine to min_lr_fraction
  std::int64_t steps = 200;
  double lr = 3e-3;
  double min_lr_fraction = 0.1;
  std::int64_t warmup_steps = 20;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;                ///< 0: no clipping

  // Run
  std::string run_dir = "runs/default";
  std::int64_t validate_every = 0;       ///< steps; 0: only at the end
  std::int64_t validation_batches = 0;   ///< 0: all of the validation data
  std::int64_t checkpoint_every = 0;     ///< steps; 0: only at the end
  std::int64_t keep_checkpoints = 2;
  bool resume = false;                   ///< from the newest checkpoint in run_dir
  std::int64_t log_every = 10;
  std::int64_t threads = 0;              ///< 0: LibTorch's choice
  std::string eval_recipe = "trained";   ///< or high_precision
};

}  // namespace octavo::train
