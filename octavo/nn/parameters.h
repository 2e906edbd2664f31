#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace octavo::nn {

struct NamedParameter {
  std::string name;  ///< the first of its names
  torch::Tensor tensor;
};

/// Every parameter below `module` once, in registration order. A tensor registered under several
/// names (a tied head) appears under its first: what optimisers, norms, counts and checkpoints
/// must walk, or a tied weight is stepped and counted twice.
std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module);

/// How many names each parameter below `module` has there: what a layer does to its weight alone it
/// must not do to one that others use.
std::unordered_map<const c10::TensorImpl*, int> name_counts(const torch::nn::Module& module);

}  // namespace octavo::nn
