#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "octavo/models/llama_config.h"

// Hugging Face's config.json and our LlamaConfig. Model types: llama, mistral, qwen2, qwen3; with
// experts mixtral, qwen3_moe, deepseek (DeepSeek-MoE) and dots1 (DeepSeek-V3's routing, ordinary
// attention).
namespace octavo::train {

/// A model as its config.json describes it.
struct HuggingFaceConfig {
  std::string model_type;  ///< "llama", ...
  models::LlamaConfig model;
};

/// Reads `file`, a config.json; one that names no rope_theta, norm or head sizes has those that
/// transformers would take. Experts are balanced by the auxiliary loss with the file's coefficient,
/// dots1's by their bias.
/// Errors, naming the file, the field, its value and what is supported: an unknown model_type; a
/// field whose value our model cannot express (another activation, biases elsewhere than at q, k
/// and v, sliding windows, other RoPE scalings, latent attention, grouped routing, quantised
/// weights); a field that is missing or of another type; sizes that do not fit each other.
HuggingFaceConfig read_hugging_face_config(const std::filesystem::path& file);

/// The model type that expresses `model`. Errors: none does, naming the key, its value and what the
/// nearest type has there.
std::string hugging_face_type(const models::LlamaConfig& model);

/// config.json of hugging_face_type(model), for weights of `dtype` ("float32", "bfloat16").
nlohmann::ordered_json hugging_face_config(const models::LlamaConfig& model,
                                           const std::string& dtype);

}  // namespace octavo::train
