#include "octavo/train/optimizer.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <map>

namespace octavo::train {
namespace {

constexpr AdamW::Options kOptions{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

at::Tensor parameter(at::IntArrayRef sizes, std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(sizes).set_requires_grad(true);
}

std::map<std::string, at::Tensor> state_of(const AdamW& optimizer) {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : optimizer.state()) state[name] = tensor;
  return state;
}

// One scalar under AdamW as the paper writes it, in double.
struct ScalarAdamW {
  double p, m = 0, v = 0;
  int t = 0;
  void step(double g, double lr, double decay) {
    ++t;
    p -= lr * decay * p;
    m = kOptions.beta1 * m + (1 - kOptions.beta1) * g;
    v = kOptions.beta2 * v + (1 - kOptions.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(kOptions.beta1, t));
    const double v_hat = v / (1 - std::pow(kOptions.beta2, t));
    p -= lr * m_hat / (std::sqrt(v_hat) + kOptions.eps);
  }
};

TEST(AdamW, FollowsTheScalarReferenceAndDecaysMatricesOnly) {
  const std::vector<std::vector<std::int64_t>> sizes = {{3, 5}, {127}, {1}, {33, 17}, {2, 3, 4}};
  NamedTensors parameters;
  std::vector<std::vector<ScalarAdamW>> reference;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    parameters.emplace_back("p" + std::to_string(i), parameter(sizes[i], i));
    reference.emplace_back();
    const at::Tensor flat = parameters.back().second.detach().flatten();
    for (std::int64_t k = 0; k < flat.numel(); ++k) {
      reference.back().push_back({.p = flat[k].item<float>()});
    }
  }
  AdamW optimizer(parameters, kOptions);
  for (int step = 0; step < 7; ++step) {
    const double lr = 1e-2 / (step + 1);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      at::Tensor& p = parameters[i].second;
      torch::manual_seed(100 + 10 * step + i);
      p.mutable_grad() = torch::randn_like(p).detach();
      const at::Tensor g = p.grad().flatten();
      for (std::int64_t k = 0; k < g.numel(); ++k) {
        reference[i][k].step(g[k].item<float>(), lr, sizes[i].size() >= 2 ? 0.1 : 0.0);
      }
    }
    optimizer.step(lr);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const at::Tensor flat = parameters[i].second.detach().flatten();
    for (std::int64_t k = 0; k < flat.numel(); ++k) {
      // A step is at most about 3 lr; its fp32 arithmetic is good to a few 2^-24 of that and each
      // of the 7 updates rounds p once: 7 * 2^-24 * |p| plus as much again.
      const double tolerance = 1e-6 * std::max(1.0, std::abs(reference[i][k].p));
      EXPECT_TRUE(std::abs(flat[k].item<float>() - reference[i][k].p) <= tolerance)
          << i << " " << k << ": " << flat[k].item<float>() << " against " << reference[i][k].p;
    }
  }
}

TEST(AdamW, StepsASharedTensorOnce) {
  const at::Tensor shared = parameter({4, 4}, 1);
  const at::Tensor alone = shared.detach().clone().set_requires_grad(true);
  AdamW twice({{"embed", shared}, {"norm", parameter({4}, 2)}, {"head", shared}}, kOptions);
  AdamW once({{"embed", alone}}, kOptions);
  ASSERT_EQ(twice.parameters().size(), 2u);
  EXPECT_EQ(twice.parameters()[0].first, "embed");
  EXPECT_EQ(twice.state().size(), 6u);
  shared.mutable_grad() = torch::ones({4, 4});
  alone.mutable_grad() = torch::ones({4, 4});
  EXPECT_DOUBLE_EQ(twice.clip_gradients(0.0), 4.0);  // sqrt(16), not sqrt(32)
  twice.step(1e-2);
  once.step(1e-2);
  EXPECT_TRUE(torch::equal(shared, alone));
}

TEST(AdamW, LeavesParametersWithoutGradientAlone) {
  at::Tensor frozen = parameter({4, 4}, 1).detach();
  const at::Tensor unused = parameter({4, 4}, 2);
  const at::Tensor used = parameter({4, 4}, 3);
  const at::Tensor frozen_before = frozen.clone(), unused_before = unused.detach().clone();
  AdamW optimizer({{"frozen", frozen}, {"unused", unused}, {"used", used}}, kOptions);
  used.mutable_grad() = torch::ones({4, 4});
  optimizer.step(1e-2);
  EXPECT_TRUE(torch::equal(frozen, frozen_before));
  EXPECT_TRUE(torch::equal(unused.detach(), unused_before));
  EXPECT_FALSE(state_of(optimizer).contains("frozen.step"));
  EXPECT_EQ(state_of(optimizer).at("unused.step").item<float>(), 0.0f);
  EXPECT_EQ(state_of(optimizer).at("used.step").item<float>(), 1.0f);
  EXPECT_THROW(AdamW({{"frozen", frozen}}, kOptions), c10::Error);
}

TEST(AdamW, TrainsBf16ParametersWithBf16States) {
  const at::Tensor p = torch::full({8, 8}, 2.0, torch::kBFloat16).set_requires_grad(true);
  AdamW optimizer({{"p", p}}, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.0});
  p.mutable_grad() = torch::ones({8, 8}, torch::kBFloat16);
  optimizer.step(0.5);
  EXPECT_EQ(state_of(optimizer).at("p.exp_avg").scalar_type(), torch::kBFloat16);
  // The first step is lr * sign(g), to bf16's 8 bits: 1.5 with at most one step of 2^-7.
  EXPECT_TRUE((p.detach().to(torch::kFloat) - 1.5).abs().max().item<float>() <= 1.0f / 128);
}

TEST(AdamW, ClipsByTheGlobalNorm) {
  const at::Tensor a = parameter({2, 2}, 1), b = parameter({5}, 2);
  AdamW optimizer({{"a", a}, {"b", b}}, kOptions);
  const auto set = [&] {
    a.mutable_grad() = torch::full({2, 2}, 3.0);
    b.mutable_grad() = torch::tensor({0.0f, 8.0f, 0.0f, 0.0f, 0.0f});
  };
  set();
  EXPECT_FLOAT_EQ(optimizer.clip_gradients(1.0), 10.0f);  // sqrt(4 * 9 + 64)
  EXPECT_NEAR(a.grad()[0][0].item<float>(), 0.3f, 1e-6);
  EXPECT_NEAR(b.grad()[1].item<float>(), 0.8f, 1e-6);
  EXPECT_NEAR(optimizer.clip_gradients(0.0), 1.0, 1e-6);
  set();
  EXPECT_FLOAT_EQ(optimizer.clip_gradients(11.0), 10.0f);  // below the limit: untouched
  EXPECT_EQ(a.grad()[0][0].item<float>(), 3.0f);
  EXPECT_FLOAT_EQ(optimizer.clip_gradients(0.0), 10.0f);  // 0: no clipping
  EXPECT_EQ(a.grad()[0][0].item<float>(), 3.0f);
}

TEST(AdamW, ANonFiniteNormScalesNothing) {
  const at::Tensor a = parameter({2}, 1);
  AdamW optimizer({{"a", a}}, kOptions);
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    a.mutable_grad() = torch::tensor({2.0f, bad});
    EXPECT_FALSE(std::isfinite(optimizer.clip_gradients(1.0)));
    EXPECT_EQ(a.grad()[0].item<float>(), 2.0f);
  }
}

TEST(AdamW, ZeroGradMakesGradientsUndefined) {
  const at::Tensor a = parameter({2}, 1);
  AdamW optimizer({{"a", a}}, kOptions);
  a.mutable_grad() = torch::ones({2});
  optimizer.zero_grad();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_EQ(optimizer.clip_gradients(1.0), 0.0);
}

TEST(AdamW, ContinuesBitEqualFromItsState) {
  const at::Tensor a = parameter({7, 9}, 1);
  AdamW first({{"a", a}}, kOptions);
  const auto gradient = [](int step) {
    torch::manual_seed(50 + step);
    return torch::randn({7, 9});
  };
  for (int step = 0; step < 3; ++step) {
    a.mutable_grad() = gradient(step);
    first.step(1e-3);
  }
  const at::Tensor b = a.detach().clone().set_requires_grad(true);
  NamedTensors saved;
  for (const auto& [name, tensor] : first.state()) saved.emplace_back(name, tensor.clone());
  AdamW second({{"a", b}}, kOptions);
  second.load_state(saved);
  for (int step = 3; step < 6; ++step) {
    a.mutable_grad() = gradient(step);
    b.mutable_grad() = gradient(step);
    first.step(1e-3);
    second.step(1e-3);
    EXPECT_TRUE(torch::equal(a, b)) << step;
  }
}

TEST(AdamW, ARefusedStateChangesNothing) {
  const at::Tensor a = parameter({3}, 1);
  AdamW optimizer({{"a", a}}, kOptions);
  const auto refused = [&](const std::map<std::string, at::Tensor>& state, const char* part) {
    try {
      optimizer.load_state({state.begin(), state.end()});
      FAIL() << "expected an error with " << part;
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_EQ(state_of(optimizer).at("a.exp_avg").abs().sum().item<float>(), 0.0f);
  };
  std::map<std::string, at::Tensor> good;
  for (const auto& [name, tensor] : optimizer.state()) good[name] = torch::ones_like(tensor);
  auto state = good;
  state.erase("a.step");
  refused(state, "'a.step' is missing");
  state = good;
  state["b.exp_avg"] = torch::ones({3});
  refused(state, "'b.exp_avg' belongs to no parameter");
  state = good;
  state["a.exp_avg_sq"] = torch::ones({4});
  refused(state, "'a.exp_avg_sq' should be");
  state["a.exp_avg_sq"] = torch::ones({3}, torch::kDouble);
  refused(state, "'a.exp_avg_sq' should be");
  optimizer.load_state({good.begin(), good.end()});
  EXPECT_EQ(state_of(optimizer).at("a.step").item<float>(), 1.0f);
}

}  // namespace
}  // namespace octavo::train
