#include "octavo/nn/convert.h"

#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "octavo/recipe/nearest.h"

namespace octavo::nn {
namespace {

struct FoundLinear {
  std::string fqn;
  LinearImpl* linear = nullptr;  // null: a foreign torch::nn::Linear
};

// Post-order, so that a container is finished when its own turn comes.
void collect(torch::nn::Module& module, const std::string& fqn,
             std::unordered_set<const torch::nn::Module*>& seen, std::vector<FoundLinear>& found) {
  if (!seen.insert(&module).second) return;
  for (const auto& child : module.named_children()) {
    collect(*child.value(), fqn.empty() ? child.key() : fqn + "." + child.key(), seen, found);
  }
  if (auto* linear = dynamic_cast<LinearImpl*>(&module)) {
    found.push_back({fqn, linear});
  } else if (dynamic_cast<torch::nn::LinearImpl*>(&module) != nullptr) {
    found.push_back({fqn, nullptr});
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The filter_fqns entry that leaves `fqn` out, or an empty string. Marks entries that match.
std::string matching_filter(const std::string& fqn, const ConvertOptions& options,
                            std::vector<bool>& matched) {
  std::string first;
  for (std::size_t i = 0; i < options.filter_fqns.size(); ++i) {
    const std::string& entry = options.filter_fqns[i];
    if (!contains(fqn, entry) && !contains(torchtitan_name(fqn), entry)) continue;
    matched[i] = true;
    if (first.empty()) first = entry;
  }
  return first;
}

std::string shown(const std::string& fqn) { return fqn.empty() ? "(the root module)" : fqn; }

// The last parts of all names, each once: what a filter could have meant.
std::vector<std::string> short_names(const std::vector<FoundLinear>& found) {
  std::vector<std::string> names;
  for (const FoundLinear& item : found) {
    for (const std::string& fqn : {item.fqn, torchtitan_name(item.fqn)}) {
      const std::string name = fqn.substr(fqn.rfind('.') + 1);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

void check_matched(const std::vector<FoundLinear>& found, const ConvertOptions& options,
                   const std::vector<bool>& matched) {
  if (options.allow_unmatched) return;
  for (std::size_t i = 0; i < matched.size(); ++i) {
    if (matched[i]) continue;
    const std::vector<std::string> names = short_names(found);
    TORCH_CHECK(false, "filter_fqns: '", options.filter_fqns[i], "' matches no linear",
                did_you_mean(options.filter_fqns[i], names), "; the linears are ", join(names),
                "; remove the entry or set allow_unmatched");
  }
}

}  // namespace

std::vector<ConvertedLinear> convert_to_float8_training(torch::nn::Module& module,
                                                        const ConvertOptions& options) {
  for (const std::string& entry : options.filter_fqns) {
    TORCH_CHECK(!entry.empty(), "filter_fqns: an empty entry would match every linear; remove it");
  }
  std::vector<FoundLinear> found;
  std::unordered_set<const torch::nn::Module*> seen;
  collect(module, "", seen, found);
  options.recipe.resolve(
      Flavour::kOCP);  // a recipe that cannot run is an error here, not in forward

  std::vector<bool> matched(options.filter_fqns.size(), false);
  std::vector<ConvertedLinear> result;
  std::vector<LinearImpl*> chosen;
  std::vector<std::string> foreign;
  for (const FoundLinear& item : found) {
    ConvertedLinear entry{.fqn = item.fqn, .converted = false, .reason = ""};
    const std::string filter = matching_filter(item.fqn, options, matched);
    if (!filter.empty()) {
      entry.reason = "filter_fqns has '" + filter + "'";
    } else if (item.linear == nullptr) {
      foreign.push_back(shown(item.fqn));
    } else if (options.filter && !options.filter(*item.linear, item.fqn)) {
      entry.reason = "the filter function left it out";
    } else if (options.auto_filter_small &&
               is_small(item.linear->options.in_features, item.linear->options.out_features)) {
      entry.reason = "auto_filter_small: fewer than 256 x 256 weights, or a side below 64";
    } else {
      entry.converted = true;
      chosen.push_back(item.linear);
    }
    result.push_back(std::move(entry));
  }
  TORCH_CHECK(foreign.empty(), "convert_to_float8_training: ", join(foreign), " ",
              foreign.size() == 1 ? "is a torch::nn::Linear" : "are torch::nn::Linear modules",
              ", which LibTorch cannot swap in place; build the model with octavo::nn::Linear, or "
              "name them in filter_fqns to leave them in high precision");
  check_matched(found, options, matched);
  TORCH_CHECK(!chosen.empty(), "convert_to_float8_training: nothing to convert: ",
              found.empty() ? "the module holds no octavo::nn::Linear"
                            : "the filters leave out every linear; remove a filter",
              found.empty() ? "; build the model with octavo::nn::Linear" : "");
  for (LinearImpl* linear : chosen) linear->recipe = options.recipe;
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
