#include "octavo/nn/fusion.h"

namespace octavo::nn {

void set_fusion(torch::nn::Module& module, bool fusion) {
  module.apply([&](torch::nn::Module& each) {
    if (auto* fused = dynamic_cast<FusedLayers*>(&each)) fused->fusion = fusion;
  });
}

}  // namespace octavo::nn
