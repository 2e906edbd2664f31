#include "octavo/train/trainer.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "octavo/kernels/counter.h"
#include "octavo/train/prepare.h"
#include "tests/error_of.h"
#include "tests/train/trainer_fixture.h"

namespace octavo::train {
namespace {

class WeightCacheTest : public TrainerTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(WeightCacheTest, ChangesNoBit) {
  TrainConfig config = tiny("without");
  config.recipe = GetParam();
  config.model.layers = 1;
  config.steps = 4;
  config.accumulation = 3;
  config.validate_every = 2;
  config.validation_batches = 1;
  const TrainResult without = Trainer(config).run();
  const auto expected = saved_parameters(config);
  config.run_dir = (folder_ / "with").string();
  config.weight_cache = true;
  const TrainResult with = Trainer(config).run();
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.validation_loss, without.validation_loss);
  for (const auto& [name, tensor] : saved_parameters(config)) {
    EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
  }
  // Loading parameters empties it too.
  config.steps = 5;
  config.resume = true;
  Trainer resumed(config);
  EXPECT_EQ(resumed.evaluate(), without.validation_loss);
  config.run_dir = (folder_ / "without").string();
  config.weight_cache = false;
  EXPECT_EQ(resumed.run().losses, Trainer(config).run().losses);
}

INSTANTIATE_TEST_SUITE_P(Recipes, WeightCacheTest, ::testing::ValuesIn(recipe_names()),
                         [](const auto& info) { return info.param; });

// Passes that write FP8 in one step of three micro-batches.
TEST_F(TrainerTest, AWeightCacheQuantisesEachWeightOnceAStep) {
  const auto passes = [&](bool cache, std::int64_t steps) {
    TrainConfig config = tiny((cache ? "cached" : "uncached") + std::to_string(steps));
    config.recipe = "blockwise";  // one pass an operand: no amax before it
    config.model.layers = 1;
    config.steps = steps;
    config.accumulation = 3;
    config.validation_batches = 1;
    config.weight_cache = cache;
    Trainer trainer(config);
    const std::uint64_t before = kernels::counters().quantize;
    trainer.run();
    return kernels::counters().quantize - before;
  };
  // The ledger's measuring and the validation are in both runs.
  const auto of_a_step = [&](bool cache) { return passes(cache, 2) - passes(cache, 1); };
  // 7 linears; w in 3 micro-batches against once.
  EXPECT_EQ(of_a_step(false) - of_a_step(true), 7u * 3 - 7u * 1);
}

}  // namespace
}  // namespace octavo::train
