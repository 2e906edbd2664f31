#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "octavo/train/config.h"
#include "octavo/train/safetensors.h"

namespace octavo::train {

/// Everything a run needs to go on as if it had not stopped.
struct CheckpointState {
  NamedTensors parameters;  ///< Hugging Face names; a tied head is stored once, as the embedding
  NamedTensors optimizer;   ///< names are the optimiser's: "<parameter>.exp_avg", ...
  at::Tensor rng;           ///< the CPU generator's state, uint8; may be undefined
  std::int64_t step = 0;    ///< steps done
  /// Micro-batches drawn from the training data: step * accumulation. The sampler needs only the
  /// step; a resumed run compares, so that a checkpoint of another order of data is not continued.
  std::int64_t data_position = 0;
  TrainConfig config;
};

/// Writes run_dir/checkpoints/step-000120/{model.safetensors, optimizer.safetensors, state.json},
/// whole or not at all: into a folder with a temporary name, every file and the folder flushed to
/// the disk, then renamed. Afterwards removes temporary folders that killed runs left and all but
/// the config.keep_checkpoints newest checkpoints. A checkpoint of the same step is replaced.
/// A failed write (no space) is an error of one line; older checkpoints stay as they were.
void save_checkpoint(const std::filesystem::path& run_dir, const CheckpointState& state);

/// Reads a checkpoint. `path` is a checkpoint's folder or a run's (its newest checkpoint).
/// Tensors share a memory mapping of the files. Errors, of one line with the repair: no checkpoint
/// there, files missing, truncated or foreign, a newer format version, a step that is not the
/// folder's.
CheckpointState load_checkpoint(const std::filesystem::path& path);

/// As load_checkpoint, without the optimiser's tensors and RNG: for eval, generate and inspect.
CheckpointState load_checkpoint_model(const std::filesystem::path& path);

/// Folders of checkpoints by step.
using Checkpoints = std::map<std::int64_t, std::filesystem::path>;

/// Their steps: "2, 4, 6".
std::string steps_text(const Checkpoints& checkpoints);

/// The folders of run_dir's checkpoints by step. A damaged one is among them: reading it says what
/// is wrong. Errors: run_dir/checkpoints that cannot be listed.
Checkpoints checkpoints_of(const std::filesystem::path& run_dir);

/// The newest of them, if there is one.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run_dir);

/// Removes the checkpoints of steps after `step`: of a run that goes on from there.
void remove_checkpoints_after(const std::filesystem::path& run_dir, std::int64_t step);

/// A module's parameters by name, a tensor registered under several names only once, under the
/// first: with a tied head lm_head.weight is dropped (the Hugging Face convention) and
/// model.embed_tokens.weight kept. Converted and plain models give the same names.
NamedTensors module_parameters(const torch::nn::Module& module);

/// Copies `parameters` into the module's, strictly: every name of module_parameters() must be there
/// with the same sizes and dtype, and no other name, except a tied tensor's second name with equal
/// values (some writers store both). Errors list the missing and the unexpected names.
void load_parameters(torch::nn::Module& module, const NamedTensors& parameters);

}  // namespace octavo::train
