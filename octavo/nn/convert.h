#pragma once

#include <functional>
#include <string>
#include <vector>

#include "octavo/nn/linear.h"

namespace octavo::nn {

struct ConvertOptions {
  Recipe recipe;
  /// Asked for every linear that filter_fqns leaves; false keeps it in high precision.
  std::function<bool(const Linear&, const std::string& fqn)> filter = {};
  /// Linears whose name contains one of these stay in high precision. Names match our own
  /// (Hugging Face) and torchtitan's aliases (wq, wk, wv, wo, w1, w2, w3, output).
  std::vector<std::string> filter_fqns = {};
  bool auto_filter_small = false;  ///< leave linears our measurements show slower in FP8
  bool allow_unmatched = false;    ///< a filter_fqns entry that matches nothing is no error
};

struct ConvertedLinear {
  std::string fqn;
  bool converted = false;
  std::string reason;  ///< why not, empty when converted
};

/// Sets the recipe of every octavo::nn::Linear below (and including) `module`, post-order, in
/// place. Returns one entry per linear. Errors: nothing converted, an unmatched filter, a foreign
/// torch::nn::Linear (it cannot be swapped in C++).
std::vector<ConvertedLinear> convert_to_float8_training(torch::nn::Module& module,
                                                        const ConvertOptions& options);

}  // namespace octavo::nn
