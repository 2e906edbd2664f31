#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace octavo::nn {

/// Where each of the M * k copies of M tokens goes that are sorted by expert: what permute() and
/// unpermute() (ops/permute.h) and grouped products take. All on the device of the experts chosen;
/// nothing waits for it.
struct SortedTokens {
  at::Tensor choice;             // (M k) int64: the copy, token * k + j, of each sorted row
  at::Tensor row;                // (M, k) int64: the sorted row of each copy
  at::Tensor offs;               // (E) int32: END offset of each expert's rows
  at::Tensor tokens_per_expert;  // (E) int64
};

/// Sorts the choices experts (M, k) int64, each in [0, E), by expert; within one, tokens keep their
/// order. E at least 1; M may be 0.
SortedTokens sort_by_expert(const at::Tensor& experts, std::int64_t number_of_experts);

}  // namespace octavo::nn
