#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "octavo/models/llama.h"
#include "octavo/train/config.h"
#include "octavo/train/optimizer.h"

namespace octavo::train {

/// What a training run will hold in memory, in bytes, before its first step: parameters, gradients
/// and optimiser by their sizes, activations by running one block of each kind (dense, MoE) and the
/// head, forward and backward, at the run's own sizes, recipe and checkpointing.
struct MemoryLedger {
  /// What the blocks of one kind keep between the passes, for each block.
  struct Blocks {
    std::string kind;  ///< "dense" or "MoE"
    std::int64_t count = 0;
    std::int64_t attention = 0;     ///< of attention with its norm, without checkpointing
    std::int64_t feed_forward = 0;  ///< of the feed-forward network or the experts, likewise
    std::int64_t kept = 0;          ///< in all, as checkpointing has it
    std::int64_t working = 0;       ///< the most its backward needs beside what is kept
  };
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t weight_caches = 0;  ///< weights in FP8, kept for a step
  std::vector<Blocks> blocks;
  std::int64_t ends = 0;     ///< the embedding's rows and the last norm's
  std::int64_t loss = 0;     ///< the most the head and the loss need beside the gradients
  std::int64_t head = 0;     ///< the head's gradient, which is there before the others
  bool accumulates = false;  ///< more than one micro-batch: gradients stay beside activations

  std::int64_t activations() const;  ///< kept by all blocks and the ends
  /// The most there is at once: at the loss, where all activations are kept, or at the end of
  /// backward, where all gradients are.
  std::int64_t peak() const;

  /// Lines for the head of a log.
  std::vector<std::string> lines() const;
  nlohmann::json json() const;
};

/// Of a run that has not begun: gradients must be undefined, and are again. Draws no random numbers
/// and changes no parameter; on a GPU it also chooses the GEMM algorithms of a block's shapes.
MemoryLedger memory_ledger(const TrainConfig& config, models::Llama& model, AdamW& optimizer);

}  // namespace octavo::train
