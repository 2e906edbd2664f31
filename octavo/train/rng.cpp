#include "octavo/train/rng.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

namespace octavo::train {

namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t random_bits(std::uint64_t seed, std::initializer_list<std::uint64_t> counters) {
  std::uint64_t state = mix(seed);
  for (std::uint64_t counter : counters) state = mix(state ^ counter);
  return state;
}

std::uint64_t random_below(std::uint64_t bound, std::uint64_t seed,
                           std::initializer_list<std::uint64_t> counters) {
  TORCH_CHECK(bound > 0, "bound: expected at least 1, got 0; there is nothing to choose from");
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(random_bits(seed, counters)) * bound >> 64);
}

at::Tensor rng_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace octavo::train
