#include "octavo/train/run_header.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "octavo/models/llama_accounting.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/train/metrics.h"

namespace octavo::train {

namespace {

std::string with(const char* label, const std::string& text) {
  std::string line = label;
  line.resize(12, ' ');
  return line + text;
}

// Layers left in high precision by reason: "lm_head (filter_fqns)".
std::string left_out(const PreparedModel& prepared) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const nn::ConvertedLinear& linear : prepared.linears) {
    if (!linear.converted) by_reason[linear.reason].push_back(linear.fqn);
  }
  std::string text;
  for (const auto& [reason, names] : by_reason) {
    text += text.empty() ? "; high precision: " : "; ";
    text += names.size() == 1 ? names.front() : std::to_string(names.size()) + " layers";
    text += " (" + reason + ")";
  }
  return text;
}

}  // namespace

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::string cpu_capability() { return at::get_cpu_capability(); }

std::vector<std::string> run_header(const TrainConfig& config, const PreparedModel& prepared,
                                    const DataSplit& data) {
  std::vector<std::string> lines;
  const int threads = at::get_num_threads();
  const std::string product = prepared.device.is_cpu() ? processor_name() + ", " + cpu_capability()
                                                       : product_name(prepared.device);
  lines.push_back(with("device", config.device + " (" + product + "), " + std::to_string(threads) +
                                     (threads == 1 ? " thread" : " threads") + ", " +
                                     config.dtype));
  const models::LlamaConfig& model = config.model;
  const models::ParameterCount count = models::parameter_count(model);
  lines.push_back(
      with("model", with_commas(count.total()) + " parameters: " + std::to_string(model.layers) +
                        " layers, D " + std::to_string(model.dim) + ", F " +
                        std::to_string(model.hidden) + ", H " + std::to_string(model.heads) + "/" +
                        std::to_string(model.kv_heads) + ", V " + std::to_string(model.vocabulary) +
                        (model.tied_head ? ", tied head" : "")));
  if (const models::MoeConfig& moe = model.moe; moe.experts > 0) {
    lines.push_back(with(
        "experts",
        std::to_string(moe.experts) + " in " + std::to_string(moe.moe_layers(model.layers)) +
            " layers, F " + std::to_string(moe.hidden) + ", " + std::to_string(moe.top_k) +
            " of a token" +
            (moe.shared_hidden > 0 ? " and a shared one, F " + std::to_string(moe.shared_hidden)
                                   : std::string()) +
            "; " + with_commas(count.active()) + " parameters active; " +
            prepared.expert_products()));
  }
  std::string recipe = prepared.recipe_string();
  if (prepared.recipe) {
    recipe += ", " + prepared.flavour() + "; products " + prepared.products() +
              "; fast accumulation " + prepared.fast_accumulation();
  } else {
    recipe += "; products " + prepared.products() + " (" + config.dtype + ")";
  }
  lines.push_back(with("recipe", recipe));
  lines.push_back(
      with("converted", std::to_string(prepared.layers_converted()) + " of " +
                            std::to_string(prepared.layers_total()) +
                            (model.moe.experts > 0 ? " linears and experts" : " linears") +
                            left_out(prepared)));
  lines.push_back(with("data", data.train.name() + ": " + with_commas(data.train.size()) +
                                   " training and " + with_commas(data.validation.size()) +
                                   " validation tokens"));
  lines.push_back(with(
      "steps",
      with_commas(config.steps) + " of " + std::to_string(config.batch) + " x " +
          std::to_string(config.sequence) +
          (config.accumulation > 1 ? " x " + std::to_string(config.accumulation) : std::string()) +
          " tokens, seed " + std::to_string(config.seed)));
  return lines;
}

std::vector<std::string> resume_differences(const TrainConfig& checkpoint,
                                            const TrainConfig& config) {
  static const std::set<std::string> kHarmless = {"run_dir",
                                                  "resume",
                                                  "resume_step",
                                                  "plan",
                                                  "init",
                                                  "fp8_stats",
                                                  "log_every",
                                                  "validate_every",
                                                  "validation_batches",
                                                  "checkpoint_every",
                                                  "keep_checkpoints",
                                                  "eval_recipe",
                                                  "cuda_graph"};
  std::vector<std::string> lines;
  for (const ConfigKey& key : config_keys()) {
    if (kHarmless.contains(key.name)) continue;
    const nlohmann::json was = key.get(checkpoint), is = key.get(config);
    if (was == is) continue;
    lines.push_back(with("changed", key.name + " was " + was.dump() + " and is " + is.dump() +
                                        ": not the run that would have gone on"));
  }
  return lines;
}

}  // namespace octavo::train
