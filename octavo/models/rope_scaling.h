#pragma once

#include <cstdint>

namespace octavo::models {

/// How RoPE's frequencies are stretched so that a model reads longer sequences than it was made
/// with. kLinear: all by `factor`. kLlama3 (Llama 3.1): those that turn fewer than
/// low_frequency_factor times in original_sequence positions by `factor`, those that turn more than
/// high_frequency_factor times not at all, those between in proportion to their turns.
enum class RopeStretch : std::uint8_t { kNone, kLinear, kLlama3 };

struct RopeScaling {
  RopeStretch stretch = RopeStretch::kNone;
  double factor = 8.0;                    ///< kLinear, kLlama3
  double low_frequency_factor = 1.0;      ///< kLlama3
  double high_frequency_factor = 4.0;     ///< kLlama3
  std::int64_t original_sequence = 8192;  ///< kLlama3

  /// Errors: the first field in use that breaks its rule, with its value and the rule.
  void validate() const;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

}  // namespace octavo::models
