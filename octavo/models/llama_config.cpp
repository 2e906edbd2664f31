#include "octavo/models/llama_config.h"

#include <c10/util/Exception.h>

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
                   std::int64_t whole) {
  TORCH_CHECK(whole % value == 0, field, " is ", value, "; it must divide ", whole_field,
              ", which is ", whole);
}

// Smallest first. The byte models have a vocabulary of 256; the llama3 ones Llama 3's own.
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
      // Llama-3-8B exactly: 8,030,261,248 parameters.
      {"llama3-8b",
       {.vocabulary = 128256,
        .dim = 4096,
        .layers = 32,
        .heads = 32,
        .kv_heads = 8,
        .hidden = 14336,
        .max_sequence = 8192}},
  };
  return table;
}

}  // namespace

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
  check_divides("heads", heads, "dim", dim);
  check_divides("kv_heads", kv_heads, "heads", heads);
  TORCH_CHECK(head_dim() % 2 == 0, "heads is ", heads, "; dim / heads = ", head_dim(),
              " must be even, because RoPE rotates pairs of features");
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
