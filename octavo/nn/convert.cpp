#include "octavo/nn/convert.h"

#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "octavo/recipe/nearest.h"

namespace octavo::nn {
namespace {

struct FoundLayer {
  std::string fqn;
  const torch::nn::Module* module = nullptr;
  Float8Layer* layer = nullptr;  // null: a foreign torch::nn::Linear
};

// Post-order, so that a container is finished when its own turn comes.
void collect(torch::nn::Module& module, const std::string& fqn,
             std::unordered_set<const torch::nn::Module*>& seen, std::vector<FoundLayer>& found) {
  if (!seen.insert(&module).second) return;
  for (const auto& child : module.named_children()) {
    collect(*child.value(), fqn.empty() ? child.key() : fqn + "." + child.key(), seen, found);
  }
  if (auto* layer = dynamic_cast<Float8Layer*>(&module)) {
    found.push_back({fqn, &module, layer});
  } else if (dynamic_cast<torch::nn::LinearImpl*>(&module) != nullptr) {
    found.push_back({fqn, &module, nullptr});
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The entries of filter_fqns or select_fqns, and which of them have matched a layer.
struct NameList {
  const char* argument;
  const std::vector<std::string>& entries;
  std::vector<bool> matched = std::vector<bool>(entries.size(), false);

  // The first entry that matches `fqn`, or an empty string. Marks every entry that does.
  std::string match(const std::string& fqn) {
    std::string first;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!contains(fqn, entries[i]) && !contains(torchtitan_name(fqn), entries[i])) continue;
      matched[i] = true;
      if (first.empty()) first = entries[i];
    }
    return first;
  }
};

std::string shown(const std::string& fqn) { return fqn.empty() ? "(the root module)" : fqn; }

// The last parts of all names, each once: what a filter could have meant.
std::vector<std::string> short_names(const std::vector<FoundLayer>& found) {
  std::vector<std::string> names;
  for (const FoundLayer& item : found) {
    for (const std::string& fqn : {item.fqn, torchtitan_name(item.fqn)}) {
      const std::string name = fqn.substr(fqn.rfind('.') + 1);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

void check_entries(const NameList& list) {
  for (const std::string& entry : list.entries) {
    TORCH_CHECK(!entry.empty(), list.argument,
                ": an empty entry would match every linear; remove it");
  }
}

void check_matched(const std::vector<FoundLayer>& found, const NameList& list) {
  for (std::size_t i = 0; i < list.matched.size(); ++i) {
    if (list.matched[i]) continue;
    const std::vector<std::string> names = short_names(found);
    TORCH_CHECK(false, list.argument, ": '", list.entries[i], "' matches no linear or experts",
                did_you_mean(list.entries[i], names), "; they are ", join(names),
                "; remove the entry or set allow_unmatched");
  }
}

bool is_small(const torch::nn::Module& module) {
  if (const auto* linear = dynamic_cast<const LinearImpl*>(&module)) {
    return nn::is_small(linear->options.in_features, linear->options.out_features);
  }
  const auto& options = dynamic_cast<const ExpertsImpl&>(module).options;
  return nn::is_small(options.features, options.hidden);
}

bool always_high_precision(const torch::nn::Module& module) {
  const auto* linear = dynamic_cast<const LinearImpl*>(&module);
  return linear != nullptr && linear->options.high_precision;
}

void check_experts_recipe(const FoundLayer& item, const Recipe& recipe) {
  TORCH_CHECK(recipe.name != RecipeName::kTensorwise ||
                  dynamic_cast<const ExpertsImpl*>(item.module) == nullptr,
              "convert_to_float8_training: ", shown(item.fqn),
              ": expected a recipe with scales of each expert's own, got tensorwise; use rowwise, "
              "or leave experts in high precision with filter_fqns experts");
}

}  // namespace

std::vector<ConvertedLinear> convert_to_float8_training(torch::nn::Module& module,
                                                        const ConvertOptions& options) {
  NameList filters{"filter_fqns", options.filter_fqns};
  NameList selection{"select_fqns", options.select_fqns};
  check_entries(filters);
  check_entries(selection);
  std::vector<FoundLayer> found;
  std::unordered_set<const torch::nn::Module*> seen;
  collect(module, "", seen, found);
  options.recipe.resolve(
      Flavour::kOCP);  // a recipe that cannot run is an error here, not in forward

  std::vector<ConvertedLinear> result;
  std::vector<const FoundLayer*> chosen;
  std::vector<std::string> foreign;
  for (const FoundLayer& item : found) {
    ConvertedLinear entry{.fqn = item.fqn, .converted = false, .reason = ""};
    const std::string filter = filters.match(item.fqn), selected = selection.match(item.fqn);
    if (!filter.empty()) {
      entry.reason = "filter_fqns has '" + filter + "'";
    } else if (selected.empty() && !options.select_fqns.empty()) {
      entry.reason = "select_fqns has no part of its name";
    } else if (item.layer == nullptr) {
      foreign.push_back(shown(item.fqn));
    } else if (always_high_precision(*item.module)) {
      entry.reason = "stays in high precision always";
    } else if (options.filter && !options.filter(*item.module, item.fqn)) {
      entry.reason = "the filter function left it out";
    } else if (options.auto_filter_small && is_small(*item.module)) {
      entry.reason = "auto_filter_small: fewer than 256 x 256 weights, or a side below 64";
    } else {
      entry.converted = true;
      chosen.push_back(&item);
    }
    result.push_back(std::move(entry));
  }
  TORCH_CHECK(foreign.empty(), "convert_to_float8_training: ", join(foreign), " ",
              foreign.size() == 1 ? "is a torch::nn::Linear" : "are torch::nn::Linear modules",
              ", which LibTorch cannot swap in place; build the model with octavo::nn::Linear, or "
              "name them in filter_fqns to leave them in high precision");
  if (!options.allow_unmatched) {
    check_matched(found, filters);
    check_matched(found, selection);
  }
  TORCH_CHECK(!chosen.empty(), "convert_to_float8_training: nothing to convert: ",
              found.empty() ? "the module holds no octavo::nn::Linear"
                            : "the filters leave out every linear; remove a filter",
              found.empty() ? "; build the model with octavo::nn::Linear" : "");
  for (const FoundLayer* item : chosen) check_experts_recipe(*item, options.recipe);
  for (const FoundLayer* item : chosen) item->layer->recipe = options.recipe;
  return result;
}

std::string torchtitan_name(const std::string& fqn) {
  static const std::map<std::string, std::string> parts = {
      {"self_attn", "attention"}, {"q_proj", "wq"},        {"k_proj", "wk"},    {"v_proj", "wv"},
      {"o_proj", "wo"},           {"mlp", "feed_forward"}, {"gate_proj", "w1"}, {"down_proj", "w2"},
      {"up_proj", "w3"},          {"lm_head", "output"}};
  std::string name;
  std::size_t begin = 0;
  while (begin <= fqn.size()) {
    const std::size_t end = std::min(fqn.find('.', begin), fqn.size());
    std::string part = fqn.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty() && part == "model") continue;  // torchtitan has no such level
    const auto alias = parts.find(part);
    if (alias != parts.end()) part = alias->second;
    name += (name.empty() ? "" : ".") + part;
  }
  return name;
}

// A guess; see convert.h.
bool is_small(std::int64_t in_features, std::int64_t out_features) {
  return in_features * out_features < 256 * 256 || std::min(in_features, out_features) < 64;
}

}  // namespace octavo::nn
