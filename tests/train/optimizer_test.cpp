#include "octavo/train/optimizer.h"

#include <ATen/Context.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <map>

#include "tests/error_of.h"

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

// torch.optim.AdamW's own two implementations: at::_fused_adamw_ (fused=True) and, in LibTorch's
// front end, a list of tensor operations.
TEST(AdamW, IsTorchsAdamWInFp32) {
  constexpr int kSteps = 20;
  const at::Tensor ours = parameter({61, 67}, 1);
  const at::Tensor fused = ours.detach().clone(), listed = ours.detach().clone();
  listed.set_requires_grad(true);
  at::Tensor m = torch::zeros_like(fused), v = torch::zeros_like(fused), t = torch::zeros({});
  AdamW optimizer({{"p", ours}}, kOptions);
  torch::optim::AdamW torchs({listed}, torch::optim::AdamWOptions(1e-2)
                                           .betas({kOptions.beta1, kOptions.beta2})
                                           .eps(kOptions.eps)
                                           .weight_decay(kOptions.weight_decay));
  for (int step = 1; step <= kSteps; ++step) {
    torch::manual_seed(step);
    const at::Tensor g = torch::randn_like(fused);
    ours.mutable_grad() = g;
    listed.mutable_grad() = g;
    optimizer.step(1e-2);
    torchs.step();
    t += 1;
    at::Tensor p = fused;
    at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {t}, 1e-2, kOptions.beta1, kOptions.beta2,
                      kOptions.weight_decay, kOptions.eps, false, false);
    // A step rounds p twice in ours and in theirs, together up to two ulps of p, and the update, of
    // about lr, comes out of five roundings and a moment of two. The bound is 1.5 ulps of
    // max(|p|, lr) a step and 1.5 more, of which 0.73 is reached (at the eighth step).
    const at::Tensor ulp =
        (fused.abs().clamp_min(1e-2)) * std::numeric_limits<float>::epsilon() * 1.5 * (1.0 + step);
    for (const at::Tensor& theirs : {fused, listed.detach()}) {
      const double worst = ((ours.detach() - theirs).abs() / ulp).max().item<double>();
      EXPECT_TRUE(worst <= 1.0) << "step " << step << ": " << worst << " of the bound";
    }
  }
}

TEST(AdamW, AMasterIsTheFp32RunFedTheSameGradients) {
  const at::Tensor whole = parameter({37, 65}, 1).detach().to(torch::kBFloat16).to(torch::kFloat);
  const at::Tensor fp32 = whole.clone().set_requires_grad(true);
  const at::Tensor bf16 = whole.to(torch::kBFloat16).set_requires_grad(true);
  AdamW::Options options = kOptions;
  options.master_weights = true;
  AdamW plain({{"p", fp32}}, kOptions), mixed({{"p", bf16}}, options);
  ASSERT_EQ(mixed.state().size(), 4u);
  for (int step = 0; step < 5; ++step) {
    torch::manual_seed(step);
    // Of bf16's values, so that both can be fed the same; then in fp32, which a trainer that sums
    // gradients in fp32 would give.
    const at::Tensor g = torch::randn({37, 65}).to(torch::kBFloat16);
    fp32.mutable_grad() = g.to(torch::kFloat);
    bf16.mutable_grad() = step < 3 ? g : g.to(torch::kFloat);
    plain.step(1e-3);
    mixed.step(1e-3);
    const auto state = state_of(mixed);
    EXPECT_TRUE(torch::equal(state.at("p.master"), fp32.detach())) << step;
    EXPECT_TRUE(torch::equal(state.at("p.exp_avg_sq"), state_of(plain).at("p.exp_avg_sq")));
    EXPECT_TRUE(torch::equal(bf16.detach(), fp32.detach().to(torch::kBFloat16))) << step;
  }
  // Steps of 1e-3 are below half a bf16 step of most weights: without masters they would be lost.
  EXPECT_FALSE(torch::equal(state_of(mixed).at("p.master"), bf16.detach().to(torch::kFloat)));
}

TEST(AdamW, Fp32ParametersAreTheirOwnMasters) {
  AdamW::Options options = kOptions;
  options.master_weights = true;
  const at::Tensor p = parameter({3}, 1);
  EXPECT_EQ(AdamW({{"p", p}}, options).state().size(), 3u);
}

TEST(AdamW, ParametersItCannotStepAreNamed) {
  const auto error = [](const NamedTensors& parameters) {
    return testing::error_of([&] { AdamW(parameters, kOptions); });
  };
  const auto of = [](at::Tensor t) { return t.set_requires_grad(true); };
  EXPECT_NE(error({{"h", of(torch::ones({2}, torch::kHalf))}}).find("h: expected dtype"),
            std::string::npos);
  EXPECT_NE(error({{"t", of(torch::ones({2, 3}).t())}}).find("t: expected a contiguous"),
            std::string::npos);
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
  EXPECT_EQ(twice.gradient_norm().item<float>(), 4.0f);  // sqrt(16), not sqrt(32)
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
  const at::Tensor a2 = a.detach().clone().set_requires_grad(true),
                   b2 = b.detach().clone().set_requires_grad(true);
  AdamW clipped({{"a", a}, {"b", b}}, kOptions), scaled({{"a", a2}, {"b", b2}}, kOptions);
  a.mutable_grad() = torch::full({2, 2}, 3.0);
  b.mutable_grad() = torch::tensor({0.0f, 8.0f, 0.0f, 0.0f, 0.0f});
  const at::Tensor norm = clipped.gradient_norm();
  EXPECT_FLOAT_EQ(norm.item<float>(), 10.0f);  // sqrt(4 * 9 + 64)
  const at::Tensor clip = clip_factor(norm, 1.0);
  EXPECT_EQ(clip.item<float>(), static_cast<float>(1.0 / (10.0 + 1e-6)));
  clipped.step(1e-2, clip);
  EXPECT_EQ(a.grad()[0][0].item<float>(), 3.0f);  // the gradients stay as they are
  a2.mutable_grad() = a.grad() * clip;
  b2.mutable_grad() = b.grad() * clip;
  scaled.step(1e-2);
  EXPECT_TRUE(torch::equal(a, a2) && torch::equal(b, b2));
  EXPECT_TRUE(
      torch::equal(state_of(clipped).at("b.exp_avg_sq"), state_of(scaled).at("b.exp_avg_sq")));
}

// On the CPU LibTorch's list of norms, on a GPU a kernel of our own: gradients of both dtypes, one
// that is not contiguous, one that is empty.
TEST(AdamW, TheNormOnAGpuIsTheCpus) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  float norms[2] = {};
  for (const c10::Device device : {c10::Device(at::kCPU), c10::Device(at::kCUDA)}) {
    NamedTensors parameters;
    const auto add = [&](const at::Tensor& gradient) {
      const at::Tensor p = torch::zeros(gradient.sizes(), gradient.options().device(device));
      parameters.emplace_back("p" + std::to_string(parameters.size()), p.set_requires_grad(true));
      parameters.back().second.mutable_grad() = gradient.to(device);
    };
    add(parameter({300, 401}, 1).detach());
    add(parameter({300, 401}, 2).detach().to(torch::kBFloat16));
    add(parameter({401, 300}, 3).detach().t());
    add(torch::zeros({0, 7}));
    add(parameter({1}, 4).detach());
    AdamW optimizer(parameters, kOptions);
    norms[device.is_cuda()] = optimizer.gradient_norm().item<float>();
    parameters[1].second.mutable_grad()[5][5] = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isinf(optimizer.gradient_norm().item<float>()));
    parameters[0].second.mutable_grad()[5][5] = std::nanf("");
    EXPECT_TRUE(std::isnan(optimizer.gradient_norm().item<float>()));
    optimizer.zero_grad();
    EXPECT_EQ(optimizer.gradient_norm().item<float>(), 0.0f);
  }
  // LibTorch's fp32 sums of 361 thousand squares are good to about 1e-6.
  EXPECT_TRUE(std::abs(norms[1] - norms[0]) <= 3e-6 * norms[0]) << norms[1] << " and " << norms[0];
}

TEST(AdamW, TheClippingFactorIsTorchs) {
  const auto factor = [](float norm, double max_norm) {
    return clip_factor(torch::tensor(norm), max_norm).item<float>();
  };
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(factor(10.0f, 11.0), 1.0f);
  EXPECT_EQ(factor(10.0f, 0.0), 1.0f);  // no clipping
  EXPECT_EQ(factor(inf, 0.0), 1.0f);
  EXPECT_EQ(factor(0.0f, 1.0), 1.0f);
  EXPECT_EQ(factor(2.0f, 1.0), static_cast<float>(1.0 / (2.0 + 1e-6)));
  EXPECT_EQ(factor(inf, 1.0), 0.0f);
  EXPECT_TRUE(std::isnan(factor(std::nanf(""), 1.0)));
}

TEST(AdamW, ANonFiniteGradientIsNotMasked) {
  for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const at::Tensor a = parameter({2}, 1);
    AdamW optimizer({{"a", a}}, kOptions);
    a.mutable_grad() = torch::tensor({2.0f, bad});
    optimizer.step(1e-2, torch::tensor(0.5f));
    EXPECT_FALSE(std::isfinite(a[1].item<float>())) << bad;
    EXPECT_TRUE(std::isfinite(a[0].item<float>())) << bad;
  }
}

TEST(AdamW, AClipOfNaNTakesNoStep) {
  const at::Tensor a = parameter({3, 5}, 1);
  AdamW optimizer({{"a", a}}, kOptions);
  a.mutable_grad() = torch::ones({3, 5});
  optimizer.step(1e-2);
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, tensor] : optimizer.state()) before[name] = tensor.clone();
  const at::Tensor parameter_before = a.detach().clone();
  optimizer.step(1e-2, torch::tensor(std::nanf("")));
  EXPECT_TRUE(torch::equal(a.detach(), parameter_before));
  for (const auto& [name, tensor] : optimizer.state()) {
    EXPECT_TRUE(torch::equal(tensor, before[name])) << name;
  }
  EXPECT_EQ(before.at("a.step").item<float>(), 1.0f);
}

TEST(AdamW, ZeroGradMakesGradientsUndefined) {
  const at::Tensor a = parameter({2}, 1);
  AdamW optimizer({{"a", a}}, kOptions);
  a.mutable_grad() = torch::ones({2});
  optimizer.zero_grad();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_EQ(optimizer.gradient_norm().item<float>(), 0.0f);
}

// The amax of what the parameter holds after the step, on several threads too, and only of those
// asked for. The size is more than a task of at::parallel_for, and no multiple of a piece.
TEST(AdamW, FindsTheAmaxesOfWhatItWrites) {
  for (const bool bf16 : {false, true}) {
    for (const bool master : {false, true}) {
      const auto dtype = bf16 ? torch::kBFloat16 : torch::kFloat;
      const at::Tensor a = parameter({357, 211}, 1).detach().to(dtype).set_requires_grad(true);
      const at::Tensor b = parameter({3}, 2), c = parameter({5}, 3);
      AdamW::Options options = kOptions;
      options.master_weights = master;
      AdamW optimizer({{"a", a}, {"b", b}, {"c", c}}, options);
      nn::WeightAmax of_a, of_b, of_c;
      const nn::WeightAmaxes amaxes = {{a.unsafeGetTensorImpl(), &of_a},
                                       {b.unsafeGetTensorImpl(), &of_b},
                                       {c.unsafeGetTensorImpl(), &of_c}};
      for (int step = 0; step < 3; ++step) {
        torch::manual_seed(step);
        a.mutable_grad() = torch::randn_like(a.detach());
        b.mutable_grad() = torch::randn({3});
        optimizer.set_learning_rate(0.3);
        optimizer.step({}, amaxes);
        const auto largest = [](const at::Tensor& t) {
          return t.detach().abs().max().item<float>();
        };
        ASSERT_TRUE(of_a.of(a).defined() && of_b.of(b).defined());
        EXPECT_EQ(of_a.of(a).item<float>(), largest(a)) << bf16 << master << step;
        EXPECT_EQ(of_b.of(b).item<float>(), largest(b)) << bf16 << master << step;
        EXPECT_FALSE(of_c.of(c).defined());  // not stepped: nobody looked
      }
      // A step that is not taken.
      const float before = of_a.of(a).item<float>();
      optimizer.step(torch::tensor(std::nanf("")), amaxes);
      EXPECT_EQ(of_a.of(a).item<float>(), before);
      // A step of somebody else's.
      optimizer.step(1e-2);
      EXPECT_FALSE(of_a.of(a).defined());
      a.mutable_grad()[0][0] = std::nanf("");
      optimizer.step({}, amaxes);
      EXPECT_TRUE(std::isnan(of_a.of(a).item<float>()));
    }
  }
}

TEST(AdamW, AmaxesChangeNoBit) {
  const at::Tensor a = parameter({357, 211}, 1);
  const at::Tensor b = a.detach().clone().set_requires_grad(true);
  AdamW with({{"a", a}}, kOptions), without({{"a", b}}, kOptions);
  nn::WeightAmax amax;
  const nn::WeightAmaxes amaxes = {{a.unsafeGetTensorImpl(), &amax}};
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(step);
    a.mutable_grad() = torch::randn({357, 211});
    b.mutable_grad() = a.grad();
    with.set_learning_rate(1e-2);
    with.step({}, amaxes);
    without.step(1e-2);
    EXPECT_TRUE(torch::equal(a, b));
    EXPECT_TRUE(torch::equal(state_of(with).at("a.exp_avg"), state_of(without).at("a.exp_avg")));
  }
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
