#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

namespace octavo::train {

/// 64 random bits that depend on `seed` and `counters` alone: a chain of SplitMix64 finalisers
/// (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), one a
/// counter. Nothing is carried from call to call, so a resumed run needs only the step's number.
/// The same bits on every machine.
std::uint64_t random_bits(std::uint64_t seed, std::initializer_list<std::uint64_t> counters);

/// A number in [0, bound) from random_bits(seed, counters), by multiplication (Lemire): the bias is
/// at most bound / 2^64. bound 0: an error.
std::uint64_t random_below(std::uint64_t bound, std::uint64_t seed,
                           std::initializer_list<std::uint64_t> counters);

/// The state of LibTorch's CPU generator, (S) uint8, and its restoration: what a checkpoint keeps
/// so that anything random inside the model continues as if it had not been interrupted.
at::Tensor rng_state();
void set_rng_state(const at::Tensor& state);

}  // namespace octavo::train
