#include "octavo/nn/parameters.h"

#include <unordered_set>

namespace octavo::nn {

std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> unique;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      unique.push_back({item.key(), item.value()});
    }
  }
  return unique;
}

std::unordered_map<const c10::TensorImpl*, int> name_counts(const torch::nn::Module& module) {
  std::unordered_map<const c10::TensorImpl*, int> counts;
  for (const auto& item : module.named_parameters()) ++counts[item.value().unsafeGetTensorImpl()];
  return counts;
}

}  // namespace octavo::nn
