#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace octavo {

/// Throws unless `offs` are the END offsets of `experts` groups (-1: of any number from 1 on) among
/// `rows` rows: int32, (E), contiguous, on `device`. On the CPU, and on GPUs with
/// OCTAVO_CHECK_OFFSETS=1 in the environment (which then synchronises), their values too: none
/// negative, none below the one before, none past `rows`. `argument` names them in messages.
void check_offsets(const char* argument, const at::Tensor& offs, std::int64_t experts,
                   std::int64_t rows, c10::Device device);

/// What check_offsets() asks of type, rank and device alone: no sizes, for Meta kernels.
void check_offsets_type(const char* argument, const at::Tensor& offs);

/// One group: `begin` to `end` of the rows layout, `begin_transposed` to `end_transposed` (aligned)
/// of the transposed one.
struct Group {
  std::int64_t begin = 0, end = 0;
  std::int64_t begin_transposed = 0, end_transposed = 0;
  std::int64_t size() const { return end - begin; }
};

/// The groups of checked offsets on the CPU, with transposed layouts aligned to `alignment`.
std::vector<Group> groups_of(const at::Tensor& offs, std::int64_t alignment);

}  // namespace octavo
