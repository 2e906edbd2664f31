#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace octavo::models {

/// Gives every matrix below `module` (experts' stacks of them and routers' gates too) its starting
/// weights: normal with deviation 0.02, those of o_proj and down_proj, which add to the residual
/// stream, divided by sqrt(2 * layers). Each depends on `seed`, its own name and nothing else
/// (nn/fill_normal.h). Linears' biases become zero; other vectors (norms, routers' biases) stay.
/// Tied weights are filled once, under their first name.
void initialise_weights(const torch::nn::Module& module, std::int64_t layers, std::uint64_t seed);

}  // namespace octavo::models
