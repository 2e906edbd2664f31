#pragma once

#include <torch/nn/module.h>

namespace octavo::nn {

/// A module that runs several FP8 layers as one operation, where they are alike, so that what lies
/// between them is quantised as it is computed. Layers with an observer run one by one.
struct FusedLayers {
  virtual ~FusedLayers() = default;

  bool fusion = true;  ///< false: layer by layer
};

/// Sets `fusion` of every such module below (and including) `module`.
void set_fusion(torch::nn::Module& module, bool fusion);

}  // namespace octavo::nn
