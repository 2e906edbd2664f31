#include "octavo/train/memory_ledger.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "octavo/nn/weight_cache.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/memory_meter.h"
#include "octavo/train/prepare.h"
#include "octavo/train/train_step.h"

namespace octavo::train {
namespace {

TEST(MemoryMeter, CountsWhatIsThereAndTheMostThereWas) {
  MemoryMeter meter(at::kCPU);
  at::Tensor kept = torch::ones({1 << 18});  // 1 MiB
  {
    const at::Tensor passing = torch::ones({1 << 19});
    EXPECT_EQ(meter.live(), 3 << 20);
  }
  EXPECT_EQ(meter.live(), 1 << 20);
  EXPECT_EQ(meter.peak(), 3 << 20);
}

// Large enough that tensors of a few hundred bytes do not matter.
TrainConfig ledger_config() {
  TrainConfig config;
  config.model = models::llama_preset("debug");
  config.model.dim = 128;
  config.model.layers = 6;
  config.model.hidden = 384;
  config.batch = 4;
  config.sequence = 128;
  config.threads = 1;
  return config;
}

struct Used {
  MemoryLedger ledger;
  std::int64_t peak;  // of a step, with what is there always
};

// The ledger before the first step, and the most that the second one takes.
Used ledger_and_use(const TrainConfig& config) {
  PreparedModel prepared = prepare_model(config);
  if (config.weight_cache) nn::enable_weight_caches(*prepared.model);
  AdamW optimizer(module_parameters(*prepared.model), AdamW::Options::of(config));
  TrainStep step(prepared.model, optimizer, TrainStep::Options::of(config));
  Used used;
  used.ledger = memory_ledger(config, prepared.model, optimizer);
  for (const auto& [name, tensor] : module_parameters(*prepared.model)) {
    EXPECT_FALSE(tensor.grad().defined()) << name;
  }
  torch::manual_seed(1);
  const at::Tensor windows =
      torch::randint(256, {config.accumulation, config.batch, config.sequence + 1}, at::kLong);
  const Batch batch{windows.narrow(2, 0, config.sequence), windows.narrow(2, 1, config.sequence)};
  const std::int64_t always = used.ledger.parameters + used.ledger.optimizer;
  {
    MemoryMeter meter(at::kCPU);
    step.run(MicroBatches::of(batch), 1e-3);
    used.peak = always + meter.peak();
    optimizer.zero_grad();
  }
  return used;
}

TEST(MemoryLedger, PartsAreTheTensorsBytes) {
  TrainConfig config = ledger_config();
  config.dtype = "bfloat16";
  config.master_weights = true;
  const MemoryLedger ledger = ledger_and_use(config).ledger;
  std::int64_t count = 0, tensors = 0;
  const PreparedModel prepared = prepare_model(config);
  for (const auto& [name, tensor] : module_parameters(*prepared.model)) {
    count += tensor.numel();
    ++tensors;
  }
  EXPECT_EQ(ledger.parameters, 2 * count);
  EXPECT_EQ(ledger.gradients, 2 * count);
  EXPECT_EQ(ledger.optimizer, 12 * count + 4 * tensors);
  ASSERT_EQ(ledger.blocks.size(), 1u);
  EXPECT_EQ(ledger.blocks[0].count, 6);
  EXPECT_EQ(ledger.activations(), 6 * ledger.blocks[0].kept + ledger.ends);
  EXPECT_EQ(ledger.json()["peak"], ledger.peak());
}

class LedgerTest : public ::testing::TestWithParam<std::string> {};

TEST_P(LedgerTest, IsWithinATenthOfWhatAStepUses) {
  for (const auto mode :
       {models::ActivationCheckpointing::kNone, models::ActivationCheckpointing::kSelective,
        models::ActivationCheckpointing::kBlocks}) {
    for (const std::int64_t accumulation : {1, 2}) {
      TrainConfig config = ledger_config();
      config.recipe = GetParam();
      config.activation_checkpointing = mode;
      config.accumulation = accumulation;
      const Used used = ledger_and_use(config);
      const double ratio = double(used.ledger.peak()) / double(used.peak);
      EXPECT_TRUE(ratio >= 0.9 && ratio <= 1.1)
          << ratio << ", checkpointing " << int(mode) << ", " << accumulation << " micro-batches";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, LedgerTest,
                         ::testing::Values("high_precision", "rowwise", "blockwise"),
                         [](const auto& info) { return info.param; });

TEST(MemoryLedger, CheckpointingKeepsLess) {
  TrainConfig config = ledger_config();
  std::int64_t kept[3];
  for (int mode = 0; mode < 3; ++mode) {
    config.activation_checkpointing = static_cast<models::ActivationCheckpointing>(mode);
    kept[mode] = ledger_and_use(config).ledger.blocks[0].kept;
  }
  EXPECT_LT(kept[1], kept[0] * 7 / 10);  // selective
  EXPECT_LT(kept[2], kept[1] / 2);       // blocks
  // A block's output alone, and what checkpoint() needs to run it again.
  EXPECT_NEAR(double(kept[2]), 4.0 * 4 * 128 * 128, 20000);
}

TEST(MemoryLedger, ExpertsHaveBlocksOfTheirOwn) {
  TrainConfig config = ledger_config();
  config.model.moe = models::llama_preset("debug-moe").moe;  // every second block
  config.recipe = "rowwise";
  const Used used = ledger_and_use(config);
  ASSERT_EQ(used.ledger.blocks.size(), 2u);
  EXPECT_EQ(used.ledger.blocks[0].kind, "dense");
  EXPECT_EQ(used.ledger.blocks[1].kind, "MoE");
  EXPECT_EQ(used.ledger.blocks[0].count, 3);
  EXPECT_EQ(used.ledger.blocks[1].count, 3);
  const double ratio = double(used.ledger.peak()) / double(used.peak);
  EXPECT_TRUE(ratio >= 0.9 && ratio <= 1.1) << ratio;
}

}  // namespace
}  // namespace octavo::train
