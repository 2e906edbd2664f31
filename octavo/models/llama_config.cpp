#include "octavo/models/llama_config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace octavo::models {
namespace {

void check_positive(const char* field, std::int64_t value) {
  TORCH_CHECK(value >= 1, field, " is ", value, "; it must be at least 1");
}

void check_positive(const char* field, double value) {
  TORCH_CHECK(std::isfinite(value) && value > 0, field, " is ", value,
              "; it must be a finite number above 0");
}

void check_divides(const char* field, std::int64_t value, const char* whole_field,
                   std::int64_t whole, const char* otherwise = "") {
  std::int64_t below = std::min(value, whole), above = value;
  while (whole % below != 0) --below;
  while (above < whole && whole % above != 0) ++above;
  TORCH_CHECK(whole % value == 0, field, " is ", value, "; it must divide ", whole_field,
              ", which is ", whole, ": set ", field, " to ", below,
              below < above && above <= whole ? " or " + std::to_string(above) : "", ", or change ",
              whole_field, otherwise);
}

// Smallest first, dense ones before those with experts. The byte models have a vocabulary of 256;
// the llama3 and qwen2.5 ones their own.
const std::vector<std::pair<std::string, LlamaConfig>>& presets() {
  static const std::vector<std::pair<std::string, LlamaConfig>> table = {
      // 0.1M parameters: seconds per test.
      {"debug",
       {.vocabulary = 256,
        .dim = 64,
        .layers = 2,
        .heads = 4,
        .kv_heads = 2,
        .hidden = 192,
        .max_sequence = 1024}},
      // 1.6M: learns Shakespeare's bytes in minutes on two cores.
      {"demo",
       {.vocabulary = 256,
        .dim = 256,
        .layers = 2,
        .heads = 4,
        .kv_heads = 2,
        .hidden = 704,
        .max_sequence = 1024}},
      // 97M with a byte vocabulary, so nearly all of it is in the blocks.
      {"100m",
       {.vocabulary = 256,
        .dim = 768,
        .layers = 12,
        .heads = 12,
        .kv_heads = 4,
        .hidden = 2816,
        .max_sequence = 8192}},
      // The sizes of Llama-3.2-1B (1.24B, tied head), without its RoPE scaling for long texts.
      {"llama3-1b",
       {.vocabulary = 128256,
        .dim = 2048,
        .layers = 16,
        .heads = 32,
        .kv_heads = 8,
        .hidden = 8192,
        .max_sequence = 8192,
        .tied_head = true}},
      // The sizes of Qwen2.5-1.5B (1.54B, tied head), without biases.
      {"qwen2.5-1.5b",
       {.vocabulary = 151936,
        .dim = 1536,
        .layers = 28,
        .heads = 12,
        .kv_heads = 2,
        .hidden = 8960,
        .max_sequence = 32768,
        .rope_theta = 1000000.0,
        .norm_eps = 1e-6,
        .tied_head = true}},
      // The sizes of Qwen2.5-7B (7.62B), without biases.
      {"qwen2.5-7b",
       {.vocabulary = 152064,
        .dim = 3584,
        .layers = 28,
        .heads = 28,
        .kv_heads = 4,
        .hidden = 18944,
        .max_sequence = 32768,
        .rope_theta = 1000000.0,
        .norm_eps = 1e-6}},
      // Llama-3-8B exactly: 8,030,261,248 parameters.
      {"llama3-8b",
       {.vocabulary = 128256,
        .dim = 4096,
        .layers = 32,
        .heads = 32,
        .kv_heads = 8,
        .hidden = 14336,
        .max_sequence = 8192}},
      // 0.1M: both kinds of block, bias balancing and a shared expert.
      {"debug-moe",
       {.vocabulary = 256,
        .dim = 64,
        .layers = 2,
        .heads = 4,
        .kv_heads = 2,
        .hidden = 192,
        .max_sequence = 1024,
        .moe = {.experts = 4,
                .top_k = 2,
                .hidden = 64,
                .shared_hidden = 64,
                .every = 2,
                .normalise = true,
                .balance = nn::LoadBalance::kBias}}},
      // 1.4M, 0.9M of them active: learns Shakespeare's bytes in a minute on two cores. Sizes are
      // multiples of 128, so that blockwise scales have whole blocks.
      {"demo-moe",
       {.vocabulary = 256,
        .dim = 128,
        .layers = 4,
        .heads = 4,
        .kv_heads = 2,
        .hidden = 384,
        .max_sequence = 1024,
        .moe = {.experts = 8,
                .top_k = 2,
                .hidden = 128,
                .shared_hidden = 128,
                .every = 2,
                .normalise = true,
                .balance_rate = 1e-2}}},
      // Llama 4 Scout's width with 2 layers of 2 experts; the published measurements' other case is
      // --layers 8 --experts 8. A dense network of ffn_dim_multiplier 1.2 and multiple_of 2048 has
      // 16384 features; a token's one expert and the shared one share them, 8192 each.
      {"llama4-debug",
       {.vocabulary = 202048,
        .dim = 5120,
        .layers = 2,
        .heads = 40,
        .kv_heads = 8,
        .hidden = 16384,
        .max_sequence = 10485760,
        .rope_theta = 500000.0,
        .moe = {.experts = 2,
                .top_k = 1,
                .hidden = 8192,
                .shared_hidden = 8192,
                .score = nn::RouterScore::kSigmoid,
                .weight_on = WeightOn::kInput,
                .balance = nn::LoadBalance::kBias}}},
      // One rank's share of DeepSeek-V3's blocks under 8-way expert parallelism: 32 of its 256
      // experts (8 of a token, which score by sigmoids and a bias), one shared expert, its width,
      // its dense network; 4 of its 61 layers, and plain attention in place of its latent one.
      {"deepseek-v3-shape",
       {.vocabulary = 129280,
        .dim = 7168,
        .layers = 4,
        .heads = 56,
        .kv_heads = 8,
        .hidden = 18432,
        .max_sequence = 4096,
        .rope_theta = 10000.0,
        .norm_eps = 1e-6,
        .moe = {.experts = 32,
                .top_k = 8,
                .hidden = 2048,
                .shared_hidden = 2048,
                .dense_first = 1,
                .score = nn::RouterScore::kSigmoid,
                .normalise = true,
                .scale = 2.5,
                .balance = nn::LoadBalance::kBias}}},
      // The sizes of DeepSeek-MoE-16B: 64 experts, 6 of a token, two shared ones (one network of
      // twice the width), the first block dense.
      {"deepseek-moe-16b",
       {.vocabulary = 102400,
        .dim = 2048,
        .layers = 28,
        .heads = 16,
        .kv_heads = 16,
        .hidden = 10944,
        .max_sequence = 4096,
        .rope_theta = 10000.0,
        .norm_eps = 1e-6,
        .moe =
            {.experts = 64, .top_k = 6, .hidden = 1408, .shared_hidden = 2816, .dense_first = 1}}},
  };
  return table;
}

}  // namespace

void RopeScaling::validate() const {
  if (stretch == RopeStretch::kNone) return;
  check_positive("rope_factor", factor);
  if (stretch == RopeStretch::kLinear) return;
  check_positive("rope_low_frequency", low_frequency_factor);
  check_positive("rope_high_frequency", high_frequency_factor);
  check_positive("rope_original_sequence", original_sequence);
  TORCH_CHECK(high_frequency_factor > low_frequency_factor, "rope_high_frequency is ",
              high_frequency_factor, "; it must be more than rope_low_frequency, which is ",
              low_frequency_factor);
}

void LlamaConfig::validate() const {
  check_positive("vocabulary", vocabulary);
  check_positive("dim", dim);
  check_positive("layers", layers);
  check_positive("heads", heads);
  check_positive("kv_heads", kv_heads);
  check_positive("hidden", hidden);
  check_positive("max_sequence", max_sequence);
  check_positive("rope_theta", rope_theta);
  check_positive("norm_eps", norm_eps);
  TORCH_CHECK(head_size >= 0, "head_dim is ", head_size, "; it must be at least 0 (dim / heads)");
  if (head_size == 0) check_divides("heads", heads, "dim", dim, " or give head_dim");
  check_divides("kv_heads", kv_heads, "heads", heads);
  TORCH_CHECK(head_dim() % 2 == 0, head_size > 0 ? "head_dim is " : "heads is ",
              head_size > 0 ? head_size : heads, head_size > 0 ? "; it" : "; dim / heads = ",
              head_size > 0 ? "" : std::to_string(head_dim()),
              " must be even, because RoPE rotates pairs of features");
  rope_scaling.validate();
  moe.validate(layers);
}

std::vector<std::string> llama_preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

LlamaConfig llama_preset(const std::string& name) {
  std::string known;
  for (const auto& [candidate, config] : presets()) {
    if (candidate == name) return config;
    known += (known.empty() ? "" : ", ") + candidate;
  }
  TORCH_CHECK(false, "preset is '", name, "'; the known ones are ", known);
}

}  // namespace octavo::models
