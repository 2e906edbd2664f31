#include "octavo/train/hugging_face_config.h"

#include <c10/util/Exception.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "octavo/train/json_file.h"

namespace octavo::train {
namespace {

using models::LlamaConfig;
using models::RopeStretch;
using nlohmann::json;
using nlohmann::ordered_json;

/// What transformers takes for fields that a file of this type leaves out.
struct TypeDefaults {
  const char* architecture;
  double rope_theta = 10000.0;
  double norm_eps = 1e-6;
  std::int64_t max_sequence = 32768;
  std::int64_t head_size = 0;  // 0: dim / heads
};

const std::map<std::string, TypeDefaults>& known_types() {
  static const std::map<std::string, TypeDefaults> types = {
      {"llama", {.architecture = "LlamaForCausalLM", .max_sequence = 2048}},
      {"mistral", {.architecture = "MistralForCausalLM", .max_sequence = 131072}},
      {"qwen2", {.architecture = "Qwen2ForCausalLM"}},
      {"qwen3", {.architecture = "Qwen3ForCausalLM", .head_size = 128}},
      {"mixtral",
       {.architecture = "MixtralForCausalLM",
        .rope_theta = 1e6,
        .norm_eps = 1e-5,
        .max_sequence = 131072}},
      {"qwen3_moe", {.architecture = "Qwen3MoeForCausalLM"}},
      {"deepseek", {.architecture = "DeepseekForCausalLM", .max_sequence = 2048}},
      {"dots1", {.architecture = "Dots1ForCausalLM", .max_sequence = 2048}},
  };
  return types;
}

/// The fields of a config.json, or of an object in it. A null counts as absent, as it does for
/// transformers.
class Fields {
 public:
  Fields(const json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  Fields within(const char* key) const { return {*find(key), file_, prefix_ + key + "."}; }

  std::int64_t whole(const char* key, std::optional<std::int64_t> otherwise = {}) const {
    const json* value = value_of(key, otherwise.has_value());
    if (value == nullptr) return *otherwise;
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() &&
         value->get<std::uint64_t>() > std::uint64_t(std::numeric_limits<std::int64_t>::max())))
      refuse(key, "an integer");
    return value->get<std::int64_t>();
  }
  double number(const char* key, std::optional<double> otherwise = {}) const {
    const json* value = value_of(key, otherwise.has_value());
    if (value == nullptr) return *otherwise;
    if (!value->is_number()) refuse(key, "a number");
    return value->get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(key, "true or false");
    return value->get<bool>();
  }
  std::string word(const char* key, const std::string& otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) refuse(key, "text");
    return value->get<std::string>();
  }
  /// A field that has one value in what octavo can express.
  void only(const char* key, const json& supported) const {
    const json* value = find(key);
    if (value != nullptr && *value != supported) refuse(key, supported.dump());
  }
  [[noreturn]] void refuse(const char* key, const std::string& supported) const {
    const json* value = find(key);
    std::string shown = value == nullptr ? "null" : value->dump();
    if (shown.size() > 80) shown = shown.substr(0, 80) + "...";
    TORCH_CHECK(false, file_, ": \"", prefix_, key, "\" is ", shown, "; octavo supports ",
                supported, " there");
  }

 private:
  const json* value_of(const char* key, bool may_be_absent) const {
    const json* value = find(key);
    TORCH_CHECK(value != nullptr || may_be_absent, file_, ": \"", prefix_, key,
                "\" is missing; give the config.json that came with the weights");
    return value;
  }

  const json& object_;
  std::string file_, prefix_;
};

// rope_parameters (transformers 5) or rope_theta and rope_scaling (before).
void read_rope(const Fields& fields, double default_theta, LlamaConfig& model) {
  fields.only("partial_rotary_factor", 1.0);
  model.rope_theta = fields.number("rope_theta", default_theta);
  const char* key = fields.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  if (fields.find(key) == nullptr) return;
  if (!fields.find(key)->is_object()) fields.refuse(key, "an object with rope_type");
  const Fields rope = fields.within(key);
  rope.only("partial_rotary_factor", 1.0);
  model.rope_theta = rope.number("rope_theta", model.rope_theta);
  const char* type_key = rope.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string type = rope.word(type_key, "default");
  if (type == "default") return;
  model.rope_scaling.factor = rope.number("factor");
  if (type == "linear") {
    model.rope_scaling.stretch = RopeStretch::kLinear;
  } else if (type == "llama3") {
    model.rope_scaling.stretch = RopeStretch::kLlama3;
    model.rope_scaling.low_frequency_factor = rope.number("low_freq_factor");
    model.rope_scaling.high_frequency_factor = rope.number("high_freq_factor");
    model.rope_scaling.original_sequence =
        rope.whole("original_max_position_embeddings", model.max_sequence);
  } else {
    rope.refuse(type_key, "\"default\", \"linear\" and \"llama3\"");
  }
}

// Attention must see every earlier position.
void check_windows(const Fields& fields, const std::string& type, const LlamaConfig& model) {
  if (const json* layers = fields.find("layer_types")) {
    if (!layers->is_array()) fields.refuse("layer_types", "a list of \"full_attention\"");
    for (const json& layer : *layers)
      if (layer != "full_attention")
        fields.refuse("layer_types", "\"full_attention\" of each layer");
    return;
  }
  if (type == "qwen2" || type == "qwen3" || type == "qwen3_moe") {
    fields.only("use_sliding_window", false);
  } else if (fields.find("sliding_window") != nullptr) {
    const bool from_layer =
        type == "dots1" && fields.whole("max_window_layers", 62) >= model.layers;
    if (!from_layer && fields.whole("sliding_window") < model.max_sequence)
      fields.refuse("sliding_window", "null, or at least max_position_embeddings,");
  }
}

void read_experts(const Fields& fields, const std::string& type, LlamaConfig& model) {
  models::MoeConfig& moe = model.moe;
  const bool deepseek = type == "deepseek" || type == "dots1";
  // transformers 5 writes num_local_experts for every type that has no other name of its own.
  const char* count = type == "qwen3_moe" && fields.find("num_experts") != nullptr ? "num_experts"
                      : deepseek && fields.find("n_routed_experts") != nullptr
                          ? "n_routed_experts"
                          : "num_local_experts";
  moe.experts = fields.whole(count);
  moe.top_k = fields.whole("num_experts_per_tok");
  moe.hidden = fields.whole(type == "mixtral" ? "intermediate_size" : "moe_intermediate_size");
  moe.normalise = type == "mixtral" || fields.flag("norm_topk_prob", false);
  moe.balance = nn::LoadBalance::kLoss;
  moe.balance_rate = fields.number(deepseek ? "aux_loss_alpha" : "router_aux_loss_coef", 1e-3);
  if (type == "mixtral") {
    fields.only("router_jitter_noise", 0.0);
  } else if (type == "qwen3_moe") {
    moe.every = fields.whole("decoder_sparse_step", 1);
    if (const json* dense = fields.find("mlp_only_layers")) {
      if (!dense->is_array()) fields.refuse("mlp_only_layers", "a list of layers");
      for (const json& layer : *dense)
        if (layer != moe.dense_first++)
          fields.refuse("mlp_only_layers", "the first layers in order, [0, 1, ...],");
    }
  } else {
    moe.shared_hidden = fields.whole("n_shared_experts", 0) * moe.hidden;
    moe.dense_first = fields.whole("first_k_dense_replace", 0);
    fields.only("moe_layer_freq", 1);
    fields.only("n_group", 1);
    if (type == "dots1") {
      moe.score = nn::RouterScore::kSigmoid;
      moe.scale = fields.number("routed_scaling_factor", 1.0);
      moe.balance = nn::LoadBalance::kBias;
      moe.balance_rate = 1e-3;
    } else {
      fields.only("scoring_func", "softmax");
      fields.only("topk_method", "greedy");
      fields.only("routed_scaling_factor", 1.0);
    }
  }
}

[[noreturn]] void refuse_export(const char* key, const json& value, const std::string& has) {
  TORCH_CHECK(false, "export: ", key, " is ", value.dump(), "; ", has,
              ". Give a model that Hugging Face has too");
}

}  // namespace

HuggingFaceConfig read_hugging_face_config(const std::filesystem::path& file) {
  const JsonResult read = read_json(file);
  TORCH_CHECK(read, file.string(), ": ", read.error,
              "; give a Hugging Face folder, with config.json and model.safetensors");
  TORCH_CHECK(read.value.is_object(), file.string(),
              ": expected a JSON object of a model's sizes, got ", read.value.type_name(),
              "; give the config.json that came with the weights");
  const Fields fields(read.value, file.string());
  HuggingFaceConfig result;
  result.model_type = fields.word("model_type", "");
  const auto found = known_types().find(result.model_type);
  if (found == known_types().end()) {
    std::string known;
    for (const auto& [name, defaults] : known_types()) known += (known.empty() ? "" : ", ") + name;
    if (fields.find("kv_lora_rank") != nullptr)
      fields.refuse("kv_lora_rank",
                    "ordinary attention and no latent one (model_type " + known + "), so nothing");
    fields.refuse("model_type", known);
  }
  const std::string& type = result.model_type;
  const TypeDefaults& defaults = found->second;
  LlamaConfig& model = result.model;
  if (fields.find("quantization_config") != nullptr)
    fields.refuse("quantization_config", "weights in fp32, bf16 or fp16, so nothing");
  fields.only("hidden_act", "silu");
  fields.only("attention_dropout", 0.0);
  fields.only("attention_bias", false);  // all four of them; qwen2's three have no field
  fields.only("mlp_bias", false);
  model.vocabulary = fields.whole("vocab_size");
  model.dim = fields.whole("hidden_size");
  model.layers = fields.whole("num_hidden_layers");
  model.heads = fields.whole("num_attention_heads");
  model.kv_heads = fields.whole("num_key_value_heads", model.heads);
  model.head_size = fields.whole("head_dim", defaults.head_size);
  model.hidden = fields.whole("intermediate_size");
  model.max_sequence = fields.whole("max_position_embeddings", defaults.max_sequence);
  model.norm_eps = fields.number("rms_norm_eps", defaults.norm_eps);
  model.tied_head = fields.flag("tie_word_embeddings", false);
  model.attention_bias = type == "qwen2";
  model.qk_norm = type == "qwen3" || type == "qwen3_moe" || type == "dots1";
  read_rope(fields, defaults.rope_theta, model);
  check_windows(fields, type, model);
  if (type == "mixtral" || type == "qwen3_moe" || type == "deepseek" || type == "dots1")
    read_experts(fields, type, model);
  // One way to write the usual size, so that equal models are equal.
  if (model.heads > 0 && model.head_size * model.heads == model.dim) model.head_size = 0;
  try {
    model.validate();
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, file.string(), ": ", error.what_without_backtrace());
  }
  return result;
}

std::string hugging_face_type(const LlamaConfig& model) {
  const models::MoeConfig& moe = model.moe;
  if (moe.experts == 0) {
    if (model.attention_bias && model.qk_norm)
      refuse_export("attention_bias", true, "with qk_norm no model there has it");
    return model.attention_bias ? "qwen2" : model.qk_norm ? "qwen3" : "llama";
  }
  if (model.attention_bias)
    refuse_export("attention_bias", true, "no model with experts there has biases at q, k and v");
  if (moe.weight_on == models::WeightOn::kInput)
    refuse_export("weight_on", "input", "only \"output\" can be written");
  const auto need = [](bool holds, const char* key, const json& value, const char* has) {
    if (!holds) refuse_export(key, value, has);
  };
  if (moe.score == nn::RouterScore::kSigmoid) {
    need(model.qk_norm, "qk_norm", false, "dots1, whose routing this is, has true");
    need(moe.balance == nn::LoadBalance::kBias, "balance", "loss or none", "dots1 has \"bias\"");
    need(moe.every == 1, "moe_every", moe.every, "dots1 has 1");
    need(moe.shared_hidden > 0 && moe.shared_hidden % moe.hidden == 0, "shared_hidden",
         moe.shared_hidden, "dots1 has a multiple of expert_hidden there");
    return "dots1";
  }
  need(moe.balance != nn::LoadBalance::kBias, "balance", "bias",
       "only models with router_score \"sigmoid\" have one there");
  need(moe.scale == 1.0, "routed_scale", moe.scale, "models with router_score \"softmax\" have 1");
  if (model.qk_norm) {
    need(moe.shared_hidden == 0, "shared_hidden", moe.shared_hidden, "qwen3_moe has none");
    return "qwen3_moe";
  }
  if (moe.shared_hidden == 0 && moe.normalise && moe.every == 1 && moe.dense_first == 0)
    return "mixtral";
  need(moe.every == 1, "moe_every", moe.every, "deepseek has 1");
  need(moe.shared_hidden % moe.hidden == 0, "shared_hidden", moe.shared_hidden,
       "deepseek has a multiple of expert_hidden there");
  return "deepseek";
}

ordered_json hugging_face_config(const LlamaConfig& model, const std::string& dtype) {
  const std::string type = hugging_face_type(model);
  const models::MoeConfig& moe = model.moe;
  ordered_json config = {
      {"architectures", ordered_json::array({known_types().at(type).architecture})},
      {"model_type", type},
      {"vocab_size", model.vocabulary},
      {"hidden_size", model.dim},
      {"intermediate_size", type == "mixtral" ? moe.hidden : model.hidden},
      {"num_hidden_layers", model.layers},
      {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.kv_heads},
      {"head_dim", model.head_dim()},
      {"hidden_act", "silu"},
      {"max_position_embeddings", model.max_sequence},
      {"rms_norm_eps", model.norm_eps},
      {"rope_theta", model.rope_theta},
      {"rope_scaling", nullptr},
      {"tie_word_embeddings", model.tied_head},
      {"attention_bias", type == "qwen2"},
      {"attention_dropout", 0.0},
      {"use_cache", true},
      {"torch_dtype", dtype}};
  const models::RopeScaling& rope = model.rope_scaling;
  if (rope.stretch == RopeStretch::kLinear) {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", rope.factor}};
  } else if (rope.stretch == RopeStretch::kLlama3) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", rope.factor},
                              {"low_freq_factor", rope.low_frequency_factor},
                              {"high_freq_factor", rope.high_frequency_factor},
                              {"original_max_position_embeddings", rope.original_sequence}};
  }
  // qwen2's biases are no field there, and the field would be another model's.
  if (type == "qwen2") config.erase("attention_bias");
  if (type == "llama") config["mlp_bias"] = false;
  if (type == "mixtral" || type == "dots1") config["sliding_window"] = nullptr;
  if (type.starts_with("qwen")) config["use_sliding_window"] = false;
  if (moe.experts == 0) return config;

  config["num_experts_per_tok"] = moe.top_k;
  config[type == "mixtral"     ? "num_local_experts"
         : type == "qwen3_moe" ? "num_experts"
                               : "n_routed_experts"] = moe.experts;
  if (type == "mixtral" || type == "qwen3_moe") {
    const bool by_loss = moe.balance == nn::LoadBalance::kLoss;
    config["router_aux_loss_coef"] = by_loss ? moe.balance_rate : 0.0;
  }
  if (type == "mixtral") return config;
  config["moe_intermediate_size"] = moe.hidden;
  config["norm_topk_prob"] = moe.normalise;
  if (type == "qwen3_moe") {
    config["decoder_sparse_step"] = moe.every;
    ordered_json dense = ordered_json::array();
    for (std::int64_t layer = 0; layer < moe.dense_first; ++layer) dense.push_back(layer);
    config["mlp_only_layers"] = dense;
    return config;
  }
  if (moe.shared_hidden > 0) config["n_shared_experts"] = moe.shared_hidden / moe.hidden;
  config["first_k_dense_replace"] = moe.dense_first;
  if (type == "dots1") {
    config["routed_scaling_factor"] = moe.scale;
    config["n_group"] = 1;
    config["topk_group"] = 1;
  } else {
    config["moe_layer_freq"] = 1;
    config["scoring_func"] = "softmax";
    config["aux_loss_alpha"] = moe.balance == nn::LoadBalance::kLoss ? moe.balance_rate : 0.0;
  }
  return config;
}

}  // namespace octavo::train
