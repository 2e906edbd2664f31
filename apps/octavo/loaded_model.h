#pragma once

#include <string>

#include "apps/octavo/command.h"
#include "octavo/train/prepare.h"

namespace octavo::app {

/// A checkpoint's model, ready to run.
struct LoadedModel {
  train::PreparedModel prepared;
  train::TrainConfig config;  ///< the checkpoint's, with the options over it
  std::int64_t step = 0;
  std::string precision;  ///< what it computes with: "rowwise, ocp" or "high_precision"
};

/// The model of the checkpoint at `path` (a checkpoint's folder or a run's), with `options` over
/// its configuration: converted with the recipe unless eval_recipe is high_precision.
LoadedModel load_model(const std::string& path, const ConfigOptions& options);

}  // namespace octavo::app
