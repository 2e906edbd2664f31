#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "octavo/kernels/adamw.h"

/// AdamW as a loop over scalars, and parameters to run it on: for the kernels of the CPU and the
/// GPU.
namespace octavo::kernels::testing {

/// The types a parameter can have: 4 in fp32, 4 in bf16, 4 in bf16 with a master.
inline std::vector<AdamwTypes> all_adamw_types() {
  constexpr HighPrecision k32 = HighPrecision::kFloat32, k16 = HighPrecision::kBFloat16;
  std::vector<AdamwTypes> all;
  for (HighPrecision gradient : {k32, k16}) {
    for (HighPrecision moments : {k32, k16}) {
      all.push_back({k32, gradient, moments, false});
      all.push_back({k16, gradient, moments, false});
      all.push_back({k16, gradient, moments, true});
    }
  }
  return all;
}

inline std::string describe(const AdamwTypes& t) {
  const auto word = [](HighPrecision x) { return x == HighPrecision::kFloat32 ? "fp32" : "bf16"; };
  return std::string("parameter ") + word(t.parameter) + (t.has_master ? " with master" : "") +
         ", gradient " + word(t.gradient) + ", moments " + word(t.moments);
}

/// A tensor's elements as they lie in memory: 2 or 4 bytes each.
class Elements {
 public:
  Elements() = default;
  Elements(HighPrecision type, const std::vector<float>& values) : type_(type) {
    bytes.resize(values.size() * bytes_of(type));
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  std::size_t size() const { return bytes.size() / bytes_of(type_); }
  std::uint32_t bits(std::size_t i) const {
    std::uint32_t out = 0;
    std::memcpy(&out, &bytes[i * bytes_of(type_)], bytes_of(type_));
    return out;
  }
  float at(std::size_t i) const { return value_of(type_, bits(i)); }
  void set(std::size_t i, float x) {
    std::uint32_t word = std::bit_cast<std::uint32_t>(x);
    if (type_ == HighPrecision::kBFloat16) {
      // To nearest even, by the value of the two neighbours.
      const std::uint32_t low = word >> 16, rest = word & 0xFFFFu;
      word = std::isnan(x) ? 0x7FC0u : low + (rest > 0x8000u || (rest == 0x8000u && low % 2 == 1));
    }
    std::memcpy(&bytes[i * bytes_of(type_)], &word, bytes_of(type_));
  }
  /// The first element that differs, all NaN being equal; -1 for none.
  std::int64_t difference(const Elements& other) const {
    for (std::size_t i = 0; i < size(); ++i) {
      if (bits(i) != other.bits(i) && !(std::isnan(at(i)) && std::isnan(other.at(i)))) {
        return static_cast<std::int64_t>(i);
      }
    }
    return -1;
  }

  std::vector<std::uint8_t> bytes;

 private:
  HighPrecision type_ = HighPrecision::kFloat32;
};

/// A parameter in the middle of training, with zeros, subnormals and the ends of the range, and,
/// where `finite` is false, with NaN and Inf in the gradient and in what is kept.
struct AdamwCase {
  AdamwTypes types;
  Elements parameter, master, gradient, exp_avg, exp_avg_sq;
  float step = 1;
  double weight_decay = 0.1;

  AdamwCase(const AdamwTypes& types, std::size_t size, bool finite, unsigned seed) : types(types) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const std::vector<float> special = {0.0f,   -0.0f, 1e-40f, -3e-39f, 1e-20f,
                                        -1e19f, 1e15f, 1.0f,   -1.0f};
    constexpr float inf = std::numeric_limits<float>::infinity();
    const std::vector<float> not_finite = {std::nanf(""), inf, -inf};
    const auto draw = [&](float scale, bool positive) {
      std::vector<float> values(size);
      for (float& x : values) {
        x = normal(random) * scale;
        const unsigned kind = random() % 40;
        if (kind == 0) x = special[random() % special.size()];
        if (kind == 1 && !finite) x = not_finite[random() % not_finite.size()];
        if (positive) x = std::fabs(x);
      }
      return values;
    };
    const std::vector<float> p = draw(0.05f, false);
    parameter = Elements(types.parameter, p);
    if (types.has_master) master = Elements(HighPrecision::kFloat32, p);
    gradient = Elements(types.gradient, draw(1e-2f, false));
    exp_avg = Elements(types.moments, draw(1e-3f, false));
    exp_avg_sq = Elements(types.moments, draw(1e-5f, true));
  }

  AdamwTensor tensor() {
    return {.parameter = parameter.bytes.data(),
            .master = types.has_master ? reinterpret_cast<float*>(master.bytes.data()) : nullptr,
            .gradient = gradient.bytes.data(),
            .exp_avg = exp_avg.bytes.data(),
            .exp_avg_sq = exp_avg_sq.bytes.data(),
            .step = &step,
            .size = static_cast<std::int64_t>(parameter.size()),
            .weight_decay = weight_decay};
  }

  /// One step, element by element, as kernels/adamw.h writes it.
  void reference(const AdamwOptions& o, double lr, float clip) {
    if (std::isnan(clip)) return;
    double power1 = 1.0, power2 = 1.0;
    for (int t = 0; t < static_cast<int>(step); ++t) power1 *= o.beta1, power2 *= o.beta2;
    const float decay = static_cast<float>(1.0 - lr * weight_decay);
    const float step_size = static_cast<float>(lr / (1.0 - power1));
    const float root = static_cast<float>(1.0 / std::sqrt(1.0 - power2));
    const float beta2 = static_cast<float>(o.beta2), rest2 = static_cast<float>(1.0 - o.beta2);
    for (std::size_t i = 0; i < parameter.size(); ++i) {
      const float g = gradient.at(i) * clip;
      float p = (types.has_master ? master.at(i) : parameter.at(i)) * decay;
      float m = exp_avg.at(i), v = exp_avg_sq.at(i);
      if (o.beta1 > 0.5) {
        m = m + static_cast<float>(1.0 - o.beta1) * (g - m);
      } else {
        m = g - static_cast<float>(o.beta1) * (g - m);
      }
      v = beta2 * v + (rest2 * g) * g;
      p = p - step_size * m / (std::sqrt(v) * root + static_cast<float>(o.eps));
      exp_avg.set(i, m);
      exp_avg_sq.set(i, v);
      if (types.has_master) master.set(i, p);
      parameter.set(i, p);
    }
  }

  /// The part that differs from `other` and where; empty for none.
  std::string difference(const AdamwCase& other) const {
    const auto part = [](const char* name, const Elements& a, const Elements& b) {
      const std::int64_t i = a.difference(b);
      if (i < 0) return std::string();
      return std::string(name) + "[" + std::to_string(i) + "]: " + std::to_string(a.bits(i)) +
             " against " + std::to_string(b.bits(i)) + " ";
    };
    return part("parameter", parameter, other.parameter) + part("master", master, other.master) +
           part("exp_avg", exp_avg, other.exp_avg) +
           part("exp_avg_sq", exp_avg_sq, other.exp_avg_sq);
  }
};

}  // namespace octavo::kernels::testing
