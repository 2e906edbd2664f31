#include "octavo/train/train_step.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "octavo/kernels/counter.h"
#include "octavo/nn/convert.h"
#include "octavo/train/checkpoint.h"
#include "tests/error_of.h"

namespace octavo::train {
namespace {

constexpr AdamW::Options kAdam{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

models::Llama small_model(std::int64_t experts = 0) {
  models::LlamaConfig config = models::llama_preset(experts > 0 ? "debug-moe" : "debug");
  config.dim = 32;
  config.hidden = 64;
  torch::manual_seed(11);
  return models::Llama(config);
}

Batch some_batch(std::int64_t micro_batches, std::uint64_t seed) {
  torch::manual_seed(seed);
  const at::Tensor windows = torch::randint(256, {micro_batches, 2, 17}, at::kLong);
  return {windows.narrow(2, 0, 16).contiguous(), windows.narrow(2, 1, 16).contiguous()};
}

at::Tensor take(TrainStep& step, const Batch& stacked, double lr) {
  return *step.run(MicroBatches::of(stacked), lr);
}

std::vector<at::Tensor> values_of(const models::Llama& model, const AdamW& optimizer) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : module_parameters(*model)) values.push_back(tensor.clone());
  for (const auto& [name, tensor] : optimizer.state()) values.push_back(tensor.clone());
  return values;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
  }
}

TEST(TrainStep, IsTheLoopWrittenOut) {
  for (const std::int64_t micro_batches : {1, 3}) {
    const models::Llama model = small_model(), other = small_model();
    AdamW optimizer(module_parameters(*model), kAdam), by_hand(module_parameters(*other), kAdam);
    TrainStep step(model, optimizer, {.clip_norm = 0.5});
    for (int i = 0; i < 3; ++i) {
      const Batch batch = some_batch(micro_batches, 100 + i);
      const double lr = 1e-3 * (i + 1);
      const StepFigures figures = StepFigures::read(take(step, batch, lr));

      by_hand.zero_grad();
      double loss = 0;
      for (std::int64_t m = 0; m < micro_batches; ++m) {
        at::Tensor part = models::Llama(other)->loss(batch.tokens[m], batch.targets[m]);
        loss += part.item<float>();
        if (micro_batches > 1) part = part / double(micro_batches);
        part.backward();
      }
      const at::Tensor norm = by_hand.gradient_norm();
      by_hand.step(lr, clip_factor(norm, 0.5));
      EXPECT_DOUBLE_EQ(figures.loss, loss / double(micro_batches)) << i;
      EXPECT_EQ(figures.gradient_norm, double(norm.item<float>())) << i;
      EXPECT_EQ(figures.aux_loss, 0.0);
      EXPECT_EQ(figures.expert_load, 0.0);
      expect_equal(values_of(model, optimizer), values_of(other, by_hand));
    }
  }
}

TEST(TrainStep, ExpertsHaveTheirFiguresAndBiasesMove) {
  const models::Llama model = small_model(4);
  AdamW optimizer(module_parameters(*model), kAdam);
  TrainStep step(model, optimizer, {});
  const at::Tensor before = model->routers()[0]->expert_bias.clone();
  const StepFigures figures = StepFigures::read(take(step, some_batch(2, 1), 1e-3));
  EXPECT_GE(figures.expert_load, 1.0);
  EXPECT_LE(figures.expert_load, 2.0);  // two of four experts can have all tokens
  EXPECT_FALSE(torch::equal(model->routers()[0]->expert_bias, before));
}

TEST(TrainStep, MicroBatchesAreReadOneAfterTheOther) {
  const models::Llama model = small_model();
  AdamW optimizer(module_parameters(*model), kAdam);
  TrainStep step(model, optimizer, {});
  const Batch stacked = some_batch(4, 1);
  c10::weak_intrusive_ptr<c10::TensorImpl> last(at::empty({0}).getIntrusivePtr());
  at::Tensor gradient;
  std::int64_t reads = 0;
  const auto read = [&](std::int64_t i) {
    EXPECT_EQ(i, reads++);
    EXPECT_TRUE(last.expired()) << i;  // memory does not grow with their number
    const at::Tensor now = model->lm_head->weight.grad();
    EXPECT_EQ(now.defined(), i > 0);
    EXPECT_FALSE(i > 1 && torch::equal(now, gradient)) << i;  // the one before is done
    if (now.defined()) gradient = now.clone();
    const Batch batch{stacked.tokens[i].clone(), stacked.targets[i].clone()};
    last = c10::weak_intrusive_ptr<c10::TensorImpl>(batch.tokens.getIntrusivePtr());
    return batch;
  };
  ASSERT_TRUE(step.run({.count = 4, .read = read}, 1e-3));
  EXPECT_EQ(reads, 4);
  const std::string error = testing::error_of([&] { step.run({.count = 0, .read = read}, 1e-3); });
  EXPECT_NE(error.find("expected at least 1 micro-batch, got 0"), error.npos) << error;
}

// Steps dropped at each of their micro-batches, before and between whole ones.
void expect_a_dropped_step_leaves_nothing(c10::Device device, bool cuda_graph) {
  const auto run = [&](bool drops) {
    // LibTorch's fp32 product by groups waits for a GPU, which no graph can hold.
    models::Llama model = small_model(device.is_cpu() ? 4 : 0);
    model->to(device);
    AdamW optimizer(module_parameters(*model), kAdam);
    TrainStep step(model, optimizer, {.cuda_graph = cuda_graph});
    std::vector<at::Tensor> values;
    for (int i = 0; i < 6; ++i) {
      for (std::int64_t whole = 0; drops && whole < 3; ++whole) {
        MicroBatches batches = MicroBatches::of(some_batch(3, 900 + i));
        batches.read = [whole, read = batches.read](std::int64_t at) {
          return at == whole ? std::nullopt : read(at);
        };
        EXPECT_FALSE(step.run(batches, 0.5));
      }
      values.push_back(take(step, some_batch(3, i), 1e-2).cpu());
    }
    for (const at::Tensor& value : values_of(model, optimizer)) values.push_back(value.cpu());
    return values;
  };
  expect_equal(run(true), run(false));
}

TEST(TrainStep, ADroppedStepLeavesNothing) {
  expect_a_dropped_step_leaves_nothing(at::kCPU, false);
}

TEST(TrainStep, ADroppedStepLeavesNothingOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  expect_a_dropped_step_leaves_nothing(at::kCUDA, false);
  expect_a_dropped_step_leaves_nothing(at::kCUDA, true);
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

// Whatever is not finite: the step and all after it leave everything as it was, until somebody
// reads the figures.
TEST(TrainStep, AfterANumberThatIsNotFiniteNothingChanges) {
  for (const bool infinite : {false, true}) {
    const models::Llama model = small_model(4);
    AdamW optimizer(module_parameters(*model), kAdam);
    TrainStep step(model, optimizer, {});
    take(step, some_batch(2, 1), 1e-3);
    at::Tensor weight = model->model->norm->weight;
    const at::Tensor good = weight.detach().clone();
    {
      torch::NoGradGuard no_grad;
      weight.fill_(infinite ? 3e38 : std::numeric_limits<double>::quiet_NaN());
    }
    const auto before = values_of(model, optimizer);
    const StepFigures bad = StepFigures::read(take(step, some_batch(2, 2), 1e-3));
    EXPECT_FALSE(std::isfinite(bad.loss) && std::isfinite(bad.gradient_norm));
    const auto after = values_of(model, optimizer);
    ASSERT_EQ(before.size(), after.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::allclose(before[i], after[i], 0, 0, /*equal_nan=*/true)) << i;
    }
    {
      torch::NoGradGuard no_grad;
      weight.copy_(good);
    }
    const auto healed = values_of(model, optimizer);
    const StepFigures later = StepFigures::read(take(step, some_batch(2, 3), 1e-3));
    EXPECT_TRUE(std::isfinite(later.loss) && std::isfinite(later.gradient_norm));
    expect_equal(values_of(model, optimizer), healed);
  }
}

// Amaxes from AdamW: the losses, weights and moments of steps without, eager and, on a GPU, in a
// graph; also where somebody else changes weights between two steps or takes a step of his own.
void expect_amaxes_change_no_bit(c10::Device device, bool cuda_graph, const char* recipe) {
  struct Run {
    models::Llama model;
    AdamW optimizer;
    TrainStep step;

    Run(c10::Device device, bool cuda_graph, const char* recipe, bool amaxes)
        : model([&] {
            models::Llama made = small_model();
            made->to(device, torch::kBFloat16);
            nn::convert_to_float8_training(
                *made, {.recipe = Recipe::parse(recipe), .filter_fqns = {"lm_head"}});
            return made;
          }()),
          optimizer(module_parameters(*model), kAdam),
          step(model, optimizer, {.cuda_graph = cuda_graph, .weight_amaxes = amaxes}) {}
  };
  Run with(device, cuda_graph, recipe, true), without(device, cuda_graph, recipe, false);
  std::uint64_t saved = 0;
  for (int i = 0; i < 7; ++i) {
    std::uint64_t reads[2] = {};
    at::Tensor figures[2];
    for (Run* run : {&without, &with}) {
      const std::uint64_t before = kernels::counters().amax;
      figures[run == &with] = take(run->step, some_batch(2, 50 + i), 1e-2).cpu();
      reads[run == &with] = kernels::counters().amax - before;
    }
    saved += reads[0] - reads[1];
    EXPECT_TRUE(torch::equal(figures[0], figures[1])) << recipe << ", step " << i;
    expect_equal(values_of(with.model, with.optimizer),
                 values_of(without.model, without.optimizer));
    if (i != 2 && i != 4) continue;
    for (Run* run : {&without, &with}) {
      const torch::NoGradGuard no_grad;
      if (i == 2) {
        run->model->model->layers->ptr<models::LlamaBlockImpl>(0)->mlp->down_proj->weight.mul_(3);
      } else {
        run->optimizer.step(1e-2);
      }
    }
  }
  // Every step: 2 layers of 7 weights in two micro-batches, and again in backward those whose
  // transposed layout is not kept. (A GPU quantises weights of this size in one read.)
  if (device.is_cpu() && std::string(recipe) == "tensorwise") {
    EXPECT_GE(saved, 7u * 2 * 7 * 2);
  }
}

TEST(TrainStep, AmaxesFromAdamWChangeNoBit) {
  for (const char* recipe : {"tensorwise", "rowwise_with_gw_hp", "rowwise"}) {
    expect_amaxes_change_no_bit(at::kCPU, false, recipe);
  }
}

TEST(TrainStep, AmaxesFromAdamWChangeNoBitOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  for (const char* recipe : {"tensorwise", "rowwise_with_gw_hp"}) {
    expect_amaxes_change_no_bit(at::kCUDA, false, recipe);
    expect_amaxes_change_no_bit(at::kCUDA, true, recipe);
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

TEST(TrainStep, GraphsAreOfGpus) {
  const models::Llama model = small_model();
  AdamW optimizer(module_parameters(*model), kAdam);
  const std::string error =
      testing::error_of([&] { TrainStep step(model, optimizer, {.cuda_graph = true}); });
  EXPECT_NE(error.find("cuda_graph: expected a model on a GPU, got cpu"), error.npos) << error;
}

}  // namespace
}  // namespace octavo::train
