#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/octavo/command.h"
#include "octavo/device/architecture.h"
#include "octavo/models/llama_accounting.h"
#include "octavo/nn/convert.h"
#include "octavo/recipe/nearest.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/metrics.h"
#include "octavo/train/prepare.h"
#include "octavo/train/product_run.h"

namespace octavo::app {
namespace {

using nlohmann::ordered_json;

struct InspectOptions {
  ConfigOptions config;
  std::string target;
  std::string architecture = "cpu";
  bool json = false;
};

// A checkpoint's configuration, a preset's, or the file's; the options over it.
train::TrainConfig config_of(const InspectOptions& options) {
  if (options.target.empty()) return options.config.make();
  const std::vector<std::string> presets = models::llama_preset_names();
  if (std::find(presets.begin(), presets.end(), options.target) != presets.end())
    return options.config.make({train::setting_from_text("preset", options.target)});
  TORCH_CHECK(std::filesystem::exists(options.target), "inspect: \"", options.target,
              "\" is neither a preset (", join(presets), ") nor a folder",
              did_you_mean(options.target, presets), "; give a preset, a run or a checkpoint");
  const train::TrainConfig saved = train::load_checkpoint_model(options.target).config;
  return options.config.make(train::settings_of(saved, options.target));
}

std::string operand_text(const LayoutSpec& layout) {
  return std::string(name(layout.format)) + " " + to_string(layout.granularity);
}

// The formats of one product and how the device multiplies them.
ordered_json product_json(const char* formula, const ProductSpec& product,
                          const Architecture& architecture, train::ProductKind kind) {
  const train::ProductRun run = train::product_run(product, architecture, kind);
  ordered_json json = {{"product", formula}};
  json["operands"] = product.high_precision()
                         ? run.how
                         : operand_text(*product.a) + " . " + operand_text(*product.b);
  json["runs"] = run.how;
  if (!run.backend.empty()) json["backend"] = run.backend;
  if (run.needs_probe) json["needs_probe"] = true;
  return json;
}

ordered_json products_json(const LinearSpec& spec, const Architecture& architecture,
                           train::ProductKind kind) {
  return {product_json("y = x . w", spec.forward, architecture, kind),
          product_json("dx = dy . w", spec.dx, architecture, kind),
          product_json("dw = dy . x", spec.dw, architecture, kind)};
}

ordered_json report(const train::TrainConfig& config, const Architecture& architecture) {
  // On the meta device: sizes without memory, so that any preset can be looked at.
  const at::ScalarType dtype = config.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  models::Llama model(config.model, at::TensorOptions().dtype(dtype).device(at::kMeta));
  std::map<std::string, std::string> reasons;
  const std::optional<Recipe> recipe = train::training_recipe(config);
  if (recipe) {
    for (const nn::ConvertedLinear& linear :
         nn::convert_to_float8_training(*model, {.recipe = *recipe,
                                                .filter_fqns = config.filter_fqns,
                                                .select_fqns = config.select_fqns,
                                                .allow_unmatched = config.allow_unmatched_filters}))
      if (!linear.converted) reasons[linear.fqn] = linear.reason;
  }

  ordered_json layers = ordered_json::array();
  std::int64_t converted = 0, linears = 0;
  bool experts_converted = false;
  for (const models::ModuleRow& row : models::list_modules(*model)) {
    ordered_json layer = {{"name", row.fqn},
                          {"kind", row.kind},
                          {"shape", row.shape},
                          {"parameters", row.parameters}};
    if (row.converts) {
      const bool fp8 = !row.recipe.empty();
      ++linears;
      converted += fp8;
      experts_converted |= fp8 && row.kind == "Experts";
      layer["fp8"] = fp8;
      layer["recipe"] = fp8 ? row.recipe : "high_precision";
      if (!fp8) {
        layer["reason"] = !recipe                       ? "the run's recipe is high_precision"
                          : reasons.count(row.fqn) != 0 ? reasons[row.fqn]
                                                        : "not converted";
      }
    }
    layers.push_back(std::move(layer));
  }

  const models::ParameterCount count = models::parameter_count(config.model);
  const models::FlopsPerToken flops = models::flops_per_token(config.model, config.sequence);
  const models::MemoryEstimate memory =
      models::memory_estimate(config.model, dtype, config.master_weights);
  ordered_json products = ordered_json::array(), expert_products = ordered_json::array();
  std::string flavour = "none", fast_accumulation = "none", expert_fast_accumulation = "none";
  if (recipe) {
    const LinearSpec spec = recipe->resolve(architecture.flavour);
    flavour = std::string(name(flavour_of(spec.forward.a->format)));
    fast_accumulation = train::fast_accumulation_text(spec);
    products = products_json(spec, architecture, train::ProductKind::kDense);
    if (experts_converted) {
      const LinearSpec experts = recipe->resolve_experts(architecture.flavour);
      expert_fast_accumulation = train::fast_accumulation_text(experts);
      expert_products = products_json(experts, architecture, train::ProductKind::kGrouped);
    }
  }
  return {{"preset", config.preset},
          {"recipe", train::recipe_text(recipe)},
          {"flavour", flavour},
          {"fast_accumulation", fast_accumulation},
          {"architecture", std::string(architecture.name)},
          {"dtype", config.dtype},
          {"parameters",
           {{"total", count.total()},
            {"embedding", count.embedding},
            {"linears", count.linears},
            {"routers", count.routers},
            {"experts", count.experts},
            {"active", count.active()},
            {"norms", count.norms},
            {"biases", count.biases},
            {"head", count.head}}},
          {"layers_converted", converted},
          {"layers_total", linears},
          {"flops_per_token",
           {{"total", flops.total()},
            {"linears", flops.linears},
            {"experts", flops.experts},
            {"head", flops.head},
            {"attention", flops.attention},
            {"sequence", config.sequence}}},
          {"memory_bytes",
           {{"total", memory.total()},
            {"parameters", memory.parameters},
            {"gradients", memory.gradients},
            {"optimizer", memory.optimizer}}},
          {"products", products},
          {"expert_products", expert_products},
          {"expert_fast_accumulation", expert_fast_accumulation},
          {"layers", layers}};
}

// "model.layers.12.mlp.up_proj" -> "model.layers.*.mlp.up_proj".
std::string without_numbers(const std::string& name) {
  std::string out;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += (begin ? "." : "") + (number ? "*" : part);
    begin = end + 1;
  }
  return out;
}

std::string shape_text(const ordered_json& shape) {
  std::string text;
  for (const ordered_json& extent : shape) text += (text.empty() ? "" : " x ") + extent.dump();
  return text;
}

// One line for the same module of every block, as long as they are treated alike.
std::string layers_table(const ordered_json& layers) {
  std::vector<std::vector<std::string>> rows = {
      {"module", "count", "shape", "parameters", "computes in", "why not FP8"}};
  std::vector<std::int64_t> counts, parameters;
  std::map<std::string, std::size_t> seen;
  for (const ordered_json& layer : layers) {
    const std::string name = without_numbers(layer["name"]);
    const bool linear = layer.contains("recipe");
    const std::string recipe = linear ? layer["recipe"].get<std::string>() : "high_precision";
    const std::string reason = linear ? layer.value("reason", "") : "no linear layer";
    const std::string key = name + "|" + shape_text(layer["shape"]) + "|" + recipe + "|" + reason;
    const auto [found, fresh] = seen.emplace(key, rows.size() - 1);
    if (fresh) {
      rows.push_back({name, "", shape_text(layer["shape"]), "", recipe, reason});
      counts.push_back(0);
      parameters.push_back(0);
    }
    ++counts[found->second];
    parameters[found->second] += layer["parameters"].get<std::int64_t>();
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    rows[i + 1][1] = std::to_string(counts[i]);
    rows[i + 1][3] = train::with_commas(parameters[i]);
  }
  return format_table(rows);
}

std::string text_of(const ordered_json& report) {
  const auto count = [&](const char* group, const char* key) {
    return train::with_commas(report[group][key].get<std::int64_t>());
  };
  const auto memory = [&](const char* key) {
    return bytes_text(report["memory_bytes"][key].get<double>());
  };
  const auto giga = [&](const char* key) {
    return fixed(report["flops_per_token"][key].get<double>() / 1e9, 4);
  };
  const bool has_experts = report["parameters"]["experts"].get<std::int64_t>() > 0;
  std::string out = layers_table(report["layers"]) + "\n";
  out += "recipe      " + report["recipe"].get<std::string>() + ", flavour " +
         report["flavour"].get<std::string>() + ", fast accumulation " +
         report["fast_accumulation"].get<std::string>() +
         (report["expert_products"].empty()
              ? ""
              : " (experts " + report["expert_fast_accumulation"].get<std::string>() + ")") +
         "; " + report["layers_converted"].dump() + " of " + report["layers_total"].dump() +
         (has_experts ? " linears and experts" : " linears") + " in FP8\n";
  const auto add_product = [&](const ordered_json& product, const char* of) {
    const train::ProductRun run{.how = product["runs"], .backend = product.value("backend", "")};
    out += "            " + product["product"].get<std::string>() + of + ": " +
           product["operands"].get<std::string>();
    if (product["operands"] != run.how) out += ", " + run.text();
    out += " on " + report["architecture"].get<std::string>();
    if (product.contains("needs_probe")) out += " where a probe at start-up succeeds";
    out += "\n";
  };
  for (const ordered_json& product : report["products"]) add_product(product, "");
  for (const ordered_json& product : report["expert_products"]) add_product(product, ", experts");
  out += "parameters  " + count("parameters", "total") + ": embedding " +
         count("parameters", "embedding") + ", linears of the blocks " +
         count("parameters", "linears") + ", norms " + count("parameters", "norms") +
         (report["parameters"]["biases"] != 0 ? ", biases " + count("parameters", "biases") : "") +
         ", head " + count("parameters", "head") +
         (has_experts
              ? ", experts " + count("parameters", "experts") + ", routers " +
                    count("parameters", "routers") + "; active " + count("parameters", "active")
              : "") +
         "\n";
  out += "memory      " + memory("total") + " in " + report["dtype"].get<std::string>() +
         ": parameters " + memory("parameters") + ", gradients " + memory("gradients") +
         ", AdamW " + memory("optimizer") + "; activations come on top\n";
  out += "work        " + giga("total") + " GFLOP per token of a training step (sequence " +
         report["flops_per_token"]["sequence"].dump() + "): linears " + giga("linears") +
         (has_experts ? ", a token's experts " + giga("experts") : "") + ", head " + giga("head") +
         ", attention " + giga("attention") + "\n";
  return out;
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "inspect", "parameters, which layers are FP8 and why others are not, memory, work");
  const auto options = std::make_shared<InspectOptions>();
  command->add_option("TARGET", options->target,
                      "a preset, or the folder of a run or checkpoint; or give --config");
  command->add_flag("--json", options->json, "print one JSON object, every layer by name");
  command
      ->add_option("--architecture", options->architecture,
                   "whose products to look up: cpu, sm_90, gfx942, ...")
      ->capture_default_str();
  add_config_file_option(*command, options->config);
  add_config_options(*command, options->config);
  command->callback([options] {
    const ordered_json result =
        report(config_of(*options), parse_architecture(options->architecture));
    std::cout << (options->json ? result.dump(2) + "\n" : text_of(result)) << std::flush;
  });
}

}  // namespace octavo::app
