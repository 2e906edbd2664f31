#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octavo/models/llama.h"
#include "octavo/train/config.h"
#include "octavo/train/optimizer.h"

namespace octavo::train {

/// Where a run starts.
struct Start {
  std::int64_t step = 0;           ///< done already
  bool from_checkpoint = false;    ///< that step's checkpoint is there
  std::vector<std::string> lines;  ///< for the log: which checkpoint, what is not as it was
};

/// Without config.resume: an error where config.run_dir holds a run, which a later resume would go
/// on with. With it: the newest checkpoint's, or config.resume_step's, parameters, optimiser and
/// random state; no checkpoint at all is step 0. Errors name the key and the repair, for a damaged
/// checkpoint which folder to remove.
Start start_or_resume(const TrainConfig& config, models::Llama& model, AdamW& optimizer);

}  // namespace octavo::train
