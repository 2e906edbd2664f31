#pragma once

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// M tokens of D features, each of which goes to k of E experts, and the M k copies sorted by
/// expert. Matrices are contiguous and of one dtype.
struct PermuteArgs {
  std::int64_t tokens = 0;    ///< M
  std::int64_t copies = 1;    ///< k
  std::int64_t features = 0;  ///< D
  DType dtype = DType::kBF16;
  const std::int64_t* choice = nullptr;  ///< (M k): copy token * k + j that sorted row r holds
  const std::int64_t* row = nullptr;     ///< (M, k): sorted row that holds copy (token, j)
  const float* weights = nullptr;        ///< (M, k), or null: all 1
  const void* tokens_in = nullptr;       ///< (M, D)
  const void* rows_in = nullptr;         ///< (M k, D)
  void* tokens_out = nullptr;            ///< (M, D)
  void* rows_out = nullptr;              ///< (M k, D)
  float* dweights = nullptr;             ///< (M, k)
};

/// rows_out[r] = tokens_in[choice[r] / k] * weights[choice[r]], one rounding (none without
/// weights).
void permute_rows(const PermuteArgs& args, Stream stream);

/// tokens_out[m] = sum over j of weights[m, j] * rows_in[row[m, j]], added in fp32 in the order of
/// j, one rounding.
void unpermute_rows(const PermuteArgs& args, Stream stream);

/// dweights[m, j] = sum over d of tokens_in[m, d] * rows_in[row[m, j], d] in fp32, in one order.
void unpermute_weight_gradient(const PermuteArgs& args, Stream stream);

}  // namespace octavo::gpu
