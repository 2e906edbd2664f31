#include "octavo/models/llama_initialise.h"

#include <cmath>
#include <string>

#include "octavo/nn/fill_normal.h"
#include "octavo/nn/parameters.h"

namespace octavo::models {
namespace {

bool adds_to_the_residual_stream(const std::string& name) {
  return name.find("o_proj") != name.npos || name.find("down_proj") != name.npos;
}

}  // namespace

void initialise_weights(const torch::nn::Module& module, std::int64_t layers, std::uint64_t seed) {
  constexpr double kDeviation = 0.02;
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(layers));
  for (const auto& [name, tensor] : nn::unique_parameters(module)) {
    if (name.ends_with(".bias")) tensor.detach().zero_();
    if (tensor.dim() < 2) continue;
    nn::fill_normal(tensor, adds_to_the_residual_stream(name) ? residual : kDeviation, seed, name);
  }
}

}  // namespace octavo::models
