// The table of keys: the only place that lists them. Reading, writing, options, help and checks all
// walk it.

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "octavo/train/config.h"

namespace octavo::train {
namespace {

using nlohmann::json;

template <class T>
struct Rule {
  std::string text;  ///< completes "expected ...": "at least 1"
  std::function<bool(const T&, const TrainConfig&)> holds;
  std::string repair = {};  ///< where it takes more than another value: "set device to cuda"
};

template <class T>
Rule<T> at_least(T low) {
  return {"at least " + std::to_string(low), [low](T v, const TrainConfig&) { return v >= low; }};
}

// The upper bounds keep products of sizes within 64 bits; no machine comes near them.
template <class T>
Rule<T> between(T low, T high) {
  return {"at least " + std::to_string(low) + " and at most " + std::to_string(high),
          [low, high](T v, const TrainConfig&) { return v >= low && v <= high; }};
}

// The bounds are written as in messages; comparisons are phrased so that NaN breaks them.
Rule<double> more_than_zero() {
  return {"a finite number more than 0",
          [](double v, const TrainConfig&) { return v > 0 && std::isfinite(v); }};
}
Rule<double> zero_or_more() {
  return {"a finite number, 0 or more",
          [](double v, const TrainConfig&) { return v >= 0 && std::isfinite(v); }};
}
Rule<double> between_0_and_1() {
  return {"between 0 and 1", [](double v, const TrainConfig&) { return v >= 0 && v <= 1; }};
}
Rule<double> below_1() {
  return {"0 or more and below 1", [](double v, const TrainConfig&) { return v >= 0 && v < 1; }};
}

Rule<std::string> one_of(std::vector<std::string> words) {
  std::string text = "one of";
  for (std::size_t i = 0; i < words.size(); ++i) text += (i ? ", " : " ") + words[i];
  return {text, [words](const std::string& v, const TrainConfig&) {
            for (const std::string& word : words)
              if (v == word) return true;
            return false;
          }};
}
Rule<std::string> not_empty() {
  return {"a name that is not empty",
          [](const std::string& v, const TrainConfig&) { return !v.empty(); }};
}

template <class T>
Rule<T> anything() {
  return {"", [](const T&, const TrainConfig&) { return true; }};
}

template <class T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, bool>) return "true|false";
  if constexpr (std::is_same_v<T, std::int64_t>) return "integer";
  if constexpr (std::is_same_v<T, std::uint64_t>) return "integer";
  if constexpr (std::is_same_v<T, double>) return "number";
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list";
}

// A JSON value as T, or none where the type does not fit. 1e3 is an integer, 1.5 is not.
template <class T>
std::optional<T> value_as(const json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (value.is_boolean()) return value.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (value.is_number_unsigned()) {
      const auto v = value.get<std::uint64_t>();
      if (v <= static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return static_cast<T>(v);
    } else if (value.is_number_integer()) {
      if constexpr (std::is_signed_v<T>) return value.get<T>();
    } else if (value.is_number_float()) {
      const double v = value.get<double>();
      constexpr double kExact = 9007199254740992.0;  // 2^53: every integer below is a double
      if (v == std::floor(v) && std::abs(v) <= kExact && (v >= 0 || std::is_signed_v<T>))
        return static_cast<T>(v);
    }
  } else if constexpr (std::is_same_v<T, double>) {
    if (value.is_number()) return value.get<double>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (value.is_string()) return value.get<std::string>();
  } else {
    if (value.is_array()) {
      T list;
      for (const json& entry : value) {
        if (!entry.is_string()) return std::nullopt;
        list.push_back(entry.get<std::string>());
      }
      return list;
    }
  }
  return std::nullopt;
}

// The end of a message about a value that is none.
std::string repair_text(const std::string& name, const std::string& own = {}) {
  return own.empty() ? "; octavo train --help says what " + name + " is" : "; " + own;
}

// A value as it is quoted in a message.
std::string quoted(const json& value) {
  constexpr std::size_t kShown = 60;
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() <= kShown) return text;
  return text.substr(0, kShown) + "... (" + std::to_string(text.size()) + " characters)";
}

std::string expected(const std::string& type, const std::string& rule) {
  if (type == "true|false") return "true or false";
  if (type == "list") return "a list of names";
  const std::string what = type == "integer"  ? "an integer"
                           : type == "number" ? "a number"
                                              : "text";
  return rule.empty() ? what : what + " (" + rule + ")";
}

/// `field` maps a config (const or not) to the member.
template <class Field, class T = std::remove_reference_t<
                           decltype(std::declval<Field>()(std::declval<TrainConfig&>()))>>
ConfigKey make_key(const char* name, const char* group, Field field, const char* doc,
                   std::type_identity_t<Rule<T>> rule) {
  ConfigKey key;
  key.name = name;
  key.group = group;
  key.type = type_name<T>();
  key.doc = doc;
  key.rule = rule.text;
  key.repair = repair_text(key.name, rule.repair);
  key.get = [field](const TrainConfig& config) { return json(field(config)); };
  key.set = [field, key_name = key.name, want = expected(key.type, key.rule)](TrainConfig& config,
                                                                              const json& value) {
    std::optional<T> converted = value_as<T>(value);
    TORCH_CHECK(converted.has_value(), key_name, ": expected ", want, ", got ", quoted(value),
                repair_text(key_name));
    if constexpr (std::is_same_v<T, std::string>) {
      // The system would take what stands before it for the whole name.
      TORCH_CHECK(converted->find('\0') == std::string::npos, key_name,
                  ": expected text without a NUL, got ", quoted(value), "; leave it out");
    }
    field(config) = std::move(*converted);
  };
  key.valid = [field, holds = rule.holds](const TrainConfig& config) {
    return holds(field(config), config);
  };
  return key;
}

/// A key whose value is a word for each of an enum's values.
template <class Field, class T = std::remove_reference_t<
                           decltype(std::declval<Field>()(std::declval<TrainConfig&>()))>>
ConfigKey make_word_key(const char* name, const char* group, Field field, const char* doc,
                        const std::vector<std::pair<std::string, T>>& words) {
  std::vector<std::string> names;
  for (const auto& entry : words) names.push_back(entry.first);
  const Rule<std::string> rule = one_of(names);
  ConfigKey key;
  key.name = name;
  key.group = group;
  key.type = type_name<std::string>();
  key.doc = doc;
  key.rule = rule.text;
  key.repair = repair_text(key.name);
  key.get = [field, words](const TrainConfig& config) {
    for (const auto& [word, value] : words)
      if (value == field(config)) return json(word);
    return json();
  };
  key.set = [field, words, key_name = key.name, want = expected(key.type, key.rule)](
                TrainConfig& config, const json& value) {
    for (const auto& [word, meaning] : words) {
      if (value != word) continue;
      field(config) = meaning;
      return;
    }
    TORCH_CHECK(false, key_name, ": expected ", want, ", got ", quoted(value),
                repair_text(key_name));
  };
  key.valid = [](const TrainConfig&) { return true; };
  return key;
}

#define FIELD(member) \
  [](auto& config) -> auto& { return config.member; }

std::vector<ConfigKey> make_keys() {
  const auto i0 = at_least<std::int64_t>(0);
  const auto i1 = at_least<std::int64_t>(1);
  const char* g = "Model";
  std::vector<ConfigKey> keys;
  const auto add = [&](const char* name, auto field, const char* doc, auto rule) {
    keys.push_back(make_key(name, g, field, doc, rule));
  };
  add("preset", FIELD(preset), "sizes that the model keys below override",
      one_of(models::llama_preset_names()));
  add("init", FIELD(init),
      "begin with the weights and sizes of a Hugging Face folder, or of a run or checkpoint",
      anything<std::string>());
  add("vocabulary", FIELD(model.vocabulary), "tokens known to the model (bytes: 256)",
      between<std::int64_t>(1, 16777216));
  add("dim", FIELD(model.dim), "width of the residual stream", between<std::int64_t>(1, 1048576));
  add("layers", FIELD(model.layers), "decoder blocks", between<std::int64_t>(1, 4096));
  add("heads", FIELD(model.heads), "attention heads; divides dim unless head_dim is given",
      between<std::int64_t>(1, 65536));
  add("kv_heads", FIELD(model.kv_heads), "key and value heads; divides heads",
      between<std::int64_t>(1, 65536));
  add("head_dim", FIELD(model.head_size), "features of one head; 0: dim / heads",
      between<std::int64_t>(0, 65536));
  add("hidden", FIELD(model.hidden), "width inside the feed-forward network",
      between<std::int64_t>(1, 4194304));
  add("max_sequence", FIELD(model.max_sequence), "longest sequence the model takes",
      between<std::int64_t>(1, 16777216));
  add("rope_theta", FIELD(model.rope_theta), "base of the rotary angles", more_than_zero());
  keys.push_back(
      make_word_key("rope_scaling", g, FIELD(model.rope_scaling.stretch),
                    "of the angles for long sequences: none, linear, or llama3 (by frequency)",
                    std::vector<std::pair<std::string, models::RopeStretch>>{
                        {"none", models::RopeStretch::kNone},
                        {"linear", models::RopeStretch::kLinear},
                        {"llama3", models::RopeStretch::kLlama3}}));
  add("rope_factor", FIELD(model.rope_scaling.factor), "rope_scaling: how many times longer",
      more_than_zero());
  add("rope_low_frequency", FIELD(model.rope_scaling.low_frequency_factor),
      "llama3: angles of fewer turns are stretched whole", more_than_zero());
  add("rope_high_frequency", FIELD(model.rope_scaling.high_frequency_factor),
      "llama3: angles of more turns are not", more_than_zero());
  add("rope_original_sequence", FIELD(model.rope_scaling.original_sequence),
      "llama3: positions in which the turns are counted", i1);
  add("norm_eps", FIELD(model.norm_eps), "epsilon of RMSNorm", more_than_zero());
  add("attention_bias", FIELD(model.attention_bias), "q, k and v have biases (Qwen 2)",
      anything<bool>());
  add("qk_norm", FIELD(model.qk_norm), "RMSNorm of each query and key head (Qwen 3)",
      anything<bool>());
  add("tied_head", FIELD(model.tied_head), "the head shares the embedding's weight",
      anything<bool>());

  g = "Mixture of experts";
  const auto add_words = [&](const char* name, auto field, const char* doc, auto words) {
    keys.push_back(make_word_key(name, g, field, doc, words));
  };
  add("experts", FIELD(model.moe.experts), "of an MoE block; 0: a dense model, without such blocks",
      i0);
  add("top_k", FIELD(model.moe.top_k), "experts of a token", i1);
  add("expert_hidden", FIELD(model.moe.hidden), "width inside one expert", i1);
  add("shared_hidden", FIELD(model.moe.shared_hidden),
      "width inside the shared expert, which sees every token; 0: none", i0);
  add("moe_every", FIELD(model.moe.every), "every so many blocks one is MoE; 1: all", i1);
  add("dense_first", FIELD(model.moe.dense_first), "blocks at the beginning that are dense", i0);
  using Scores = std::vector<std::pair<std::string, nn::RouterScore>>;
  add_words("router_score", FIELD(model.moe.score),
            "of the experts: softmax (DeepSeek) or sigmoid (Llama 4)",
            Scores{{"softmax", nn::RouterScore::kSoftmax}, {"sigmoid", nn::RouterScore::kSigmoid}});
  add("normalise_weights", FIELD(model.moe.normalise), "a token's weights add up to 1",
      anything<bool>());
  add("routed_scale", FIELD(model.moe.scale), "of the weights, after that", more_than_zero());
  using WeightOns = std::vector<std::pair<std::string, models::WeightOn>>;
  add_words("weight_on", FIELD(model.moe.weight_on),
            "weights multiply an expert's output (DeepSeek) or its input (Llama 4)",
            WeightOns{{"output", models::WeightOn::kOutput}, {"input", models::WeightOn::kInput}});
  using Balances = std::vector<std::pair<std::string, nn::LoadBalance>>;
  add_words("balance", FIELD(model.moe.balance),
            "of the experts' load: none, by an auxiliary loss, or by a bias moved after each step",
            Balances{{"none", nn::LoadBalance::kNone},
                     {"loss", nn::LoadBalance::kLoss},
                     {"bias", nn::LoadBalance::kBias}});
  add("balance_rate", FIELD(model.moe.balance_rate),
      "factor of the auxiliary loss, or what the bias moves by in a step", zero_or_more());

  g = "Precision";
  add("recipe", FIELD(recipe), "high_precision, or an FP8 recipe (octavo recipes lists them)",
      not_empty());
  add("flavour", FIELD(flavour), "FP8 formats: the device's own (auto), ocp or fnuz",
      one_of({"auto", "ocp", "fnuz"}));
  add("filter_fqns", FIELD(filter_fqns),
      "linears and experts whose name contains one of these stay unconverted",
      anything<std::vector<std::string>>());
  add("select_fqns", FIELD(select_fqns),
      "if any, only linears and experts whose name contains one of these are converted",
      anything<std::vector<std::string>>());
  add("allow_unmatched_filters", FIELD(allow_unmatched_filters),
      "a filter that matches no linear is no error", anything<bool>());
  using Checkpointings = std::vector<std::pair<std::string, models::ActivationCheckpointing>>;
  add_words(
      "activation_checkpointing", FIELD(activation_checkpointing),
      "what backward recomputes, for less memory and more time: none, selective (feed-forward "
      "networks and experts) or block (everything)",
      Checkpointings{{"none", models::ActivationCheckpointing::kNone},
                     {"selective", models::ActivationCheckpointing::kSelective},
                     {"block", models::ActivationCheckpointing::kBlocks}});
  add("dtype", FIELD(dtype), "parameters and activations: float32 or bfloat16",
      one_of({"float32", "bfloat16"}));
  add("master_weights", FIELD(master_weights),
      "AdamW keeps weights and moments in fp32, the weights computed with are their bfloat16",
      Rule<bool>{"false where dtype is float32, whose weights are masters themselves",
                 [](bool v, const TrainConfig& c) { return !v || c.dtype == "bfloat16"; },
                 "set dtype to bfloat16, or master_weights to false"});
  add("weight_cache", FIELD(weight_cache),
      "quantise each weight once a step, not once a micro-batch: 2 bytes an element more",
      anything<bool>());
  add("keep_weight_transposed", FIELD(keep_weight_transposed),
      "a weight's transposed FP8 copy: kept from forward to backward (on), made again there (off: "
      "1 byte an element of the block's weights less), or whichever moves fewer bytes (auto)",
      one_of({"auto", "on", "off"}));
  add("fusion", FIELD(fusion),
      "FP8 layers that are alike run as one operation (gate, up and down; q, k and v), norms and "
      "SwiGLU quantise what they give, and residuals are added in the norms",
      anything<bool>());
  add("device", FIELD(device), "where to train: cpu, or cuda in a build of the preset cuda",
      one_of({"cpu", "cuda"}));
  add("gradients_in_place", FIELD(gradients_in_place),
      "on a GPU the head, the embedding and plain linears add their gradients in place instead of "
      "through autograd",
      anything<bool>());
  add("deterministic", FIELD(deterministic),
      "attention's and other backwards of LibTorch give the same bits each time, more slowly on a "
      "GPU; on the CPU they always do",
      anything<bool>());
  add("cuda_graph", FIELD(cuda_graph),
      "queue a whole step as one CUDA graph: the host's time for each kernel goes away",
      Rule<bool>{"false where device is cpu",
                 [](bool v, const TrainConfig& c) { return !v || c.device != "cpu"; },
                 "set device to cuda, or cuda_graph to false"});
  add("gemm_tuning", FIELD(gemm_tuning),
      "how cuBLASLt's algorithms are chosen: measure, heuristic (its first proposal), or as "
      "OCTAVO_GEMM_TUNING says (auto)",
      one_of({"auto", "measure", "heuristic"}));
  add("plan", FIELD(plan), "the gemm_plans.txt of a run whose algorithms to use",
      anything<std::string>());
  add("seed", FIELD(seed), "of the weights and the order of the data", anything<std::uint64_t>());

  g = "Data";
  add("train_data", FIELD(train_data),
      "text files (read as bytes), or .bin token shards or a folder of them",
      anything<std::string>());
  add("validation_data", FIELD(validation_data),
      "held-out data; empty: the last validation_fraction of train_data", anything<std::string>());
  add("validation_fraction", FIELD(validation_fraction), "of train_data, held out for validation",
      Rule<double>{"more than 0 and below 1",
                   [](double v, const TrainConfig&) { return v > 0 && v < 1; }});
  add("batch", FIELD(batch), "sequences per micro-batch", between<std::int64_t>(1, 1048576));
  add("sequence", FIELD(sequence), "tokens per sequence, at most max_sequence",
      between<std::int64_t>(1, 16777216));
  add("accumulation", FIELD(accumulation), "micro-batches per step",
      between<std::int64_t>(1, 1000000));

  g = "Optimisation";
  add("steps", FIELD(steps), "optimiser steps in all, resumed ones counted",
      between<std::int64_t>(1, 1000000000000));
  add("lr", FIELD(lr), "peak learning rate", more_than_zero());
  add("min_lr_fraction", FIELD(min_lr_fraction), "of lr, reached at the last step",
      between_0_and_1());
  add("warmup_steps", FIELD(warmup_steps), "steps of linear warm-up", i0);
  add("beta1", FIELD(beta1), "AdamW's decay of the first moment", below_1());
  add("beta2", FIELD(beta2), "AdamW's decay of the second moment", below_1());
  add("adam_eps", FIELD(adam_eps), "AdamW's epsilon", more_than_zero());
  add("weight_decay", FIELD(weight_decay), "of matrices; norms have none", zero_or_more());
  add("clip_norm", FIELD(clip_norm), "largest gradient norm; 0: no clipping", zero_or_more());

  g = "Run";
  add("run_dir", FIELD(run_dir), "where metrics, summary and checkpoints go", not_empty());
  add("validate_every", FIELD(validate_every), "steps between validations; 0: only at the end", i0);
  add("validation_batches", FIELD(validation_batches), "micro-batches per validation; 0: all", i0);
  add("checkpoint_every", FIELD(checkpoint_every), "steps between checkpoints; 0: only at the end",
      i0);
  add("keep_checkpoints", FIELD(keep_checkpoints), "newest checkpoints that stay", i1);
  add("resume", FIELD(resume), "go on from the newest checkpoint in run_dir", anything<bool>());
  add("resume_step", FIELD(resume_step),
      "go on from that step's checkpoint and remove later ones; 0: the newest", i0);
  add("log_every", FIELD(log_every), "steps between progress lines", i1);
  add("fp8_stats", FIELD(fp8_stats),
      "steps between samples of FP8 health in metrics.jsonl (docs/training.md); 0: none", i0);
  add("threads", FIELD(threads), "0: LibTorch's choice", between<std::int64_t>(0, kMostThreads));
  add("eval_recipe", FIELD(eval_recipe), "validation runs as trained, or in high_precision",
      one_of({"trained", "high_precision"}));
  return keys;
}
#undef FIELD

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_keys();
  return keys;
}

}  // namespace octavo::train
