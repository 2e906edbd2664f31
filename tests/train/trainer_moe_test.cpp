#include "octavo/train/trainer.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "octavo/train/prepare.h"
#include "tests/error_of.h"
#include "tests/train/trainer_fixture.h"

namespace octavo::train {
namespace {

using testing::error_of;

class MoeTrainerTest : public TrainerTest {
 protected:
  TrainConfig tiny_moe(const std::string& run) const {
    TrainConfig config = tiny(run);
    config.model.moe = {.experts = 4,
                        .top_k = 2,
                        .hidden = 32,
                        .shared_hidden = 32,
                        .every = 2,
                        .balance_rate = 0.01};
    return config;
  }
};

TEST_F(MoeTrainerTest, AuxiliaryLossAndLoadHaveTheirOwnKeys) {
  TrainConfig config = tiny_moe("loss");
  std::ostringstream log;
  config.recipe = "rowwise";
  const TrainResult result = Trainer(config, {.log = &log}).run();
  EXPECT_EQ(result.layers_total, 4 + 3 + 4 + 1 + 1 + 3 + 1);
  EXPECT_EQ(result.layers_converted, result.layers_total - 2);  // lm_head and the gate
  EXPECT_HAS(log.str(), "experts     4 in 1 layers, F 32, 2 of a token and a shared one, F 32; ");
  EXPECT_HAS(log.str(), "active; products emulated (reference backend); fast accumulation all");
  EXPECT_HAS(log.str(), "router.gate (stays in high precision always)");
  std::size_t lines = 0;
  for (const nlohmann::json& line : metrics(config)) {
    if (line["event"] != "train") continue;
    // Balanced it is 0.01; at the start softmax is nearly even.
    EXPECT_NEAR(line["aux_loss"].get<double>(), 0.01, 0.01) << line;
    EXPECT_GE(line["expert_load"].get<double>(), 1.0) << line;
    EXPECT_LE(line["expert_load"].get<double>(), 2.0) << line;  // k of E is the most
    EXPECT_EQ(line["loss"].get<double>(), result.losses[lines++]);
  }
  EXPECT_EQ(lines, 12u);

  // The cross-entropy of the first step does not know of the balance; the parameters after it do.
  TrainConfig without = tiny_moe("none");
  without.recipe = "rowwise";
  without.model.moe.balance = nn::LoadBalance::kNone;
  const TrainResult other = Trainer(without).run();
  EXPECT_EQ(other.losses[0], result.losses[0]);
  EXPECT_NE(other.losses[11], result.losses[11]);
  EXPECT_EQ(metrics(without)[1]["aux_loss"], 0.0);
}

TEST_F(MoeTrainerTest, ADenseModelHasNeitherKey) {
  TrainConfig config = tiny("dense");
  config.steps = 1;
  Trainer(config).run();
  EXPECT_FALSE(metrics(config)[1].contains("aux_loss"));
  EXPECT_FALSE(metrics(config)[1].contains("expert_load"));
}

TEST_F(MoeTrainerTest, ResumedIsBitEqualWithBiasesInTheCheckpoint) {
  for (const char* recipe : {"high_precision", "rowwise", "mxfp8"}) {
    TrainConfig config = tiny_moe(std::string("whole_") + recipe);
    config.recipe = recipe;
    config.steps = 6;
    config.accumulation = 2;
    config.validation_batches = 1;
    config.model.moe.balance = nn::LoadBalance::kBias;
    const TrainResult whole = Trainer(config).run();
    const auto expected = saved_parameters(config);
    const at::Tensor bias = expected.at("model.layers.1.moe.router.expert_bias");
    EXPECT_GT(bias.abs().max().item<double>(), 0.0) << recipe;
    EXPECT_FALSE(expected.contains("adamw model.layers.1.moe.router.expert_bias.exp_avg"));

    config.run_dir = (folder_ / (std::string("stopped_") + recipe)).string();
    SignallingLog stop("step 4/6", SIGTERM);
    std::ostream log(&stop);
    const TrainResult first = Trainer(config, {.log = &log}).run();
    EXPECT_EQ(first.steps, 4);
    config.resume = true;
    const TrainResult rest = Trainer(config).run();
    std::vector<double> losses = first.losses;
    losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
    EXPECT_EQ(losses, whole.losses) << recipe;
    EXPECT_EQ(rest.validation_loss, whole.validation_loss) << recipe;
    for (const auto& [name, tensor] : saved_parameters(config)) {
      EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << recipe << " " << name;
    }
    EXPECT_NE(Trainer(config).evaluate(EvalRecipe::kHighPrecision),
              recipe == std::string("high_precision") ? 0.0 : whole.validation_loss);
  }
}

TEST_F(MoeTrainerTest, DenseAloneAndExpertsAlone) {
  TrainConfig config = tiny_moe("dense_only");
  config.steps = 2;
  config.recipe = "rowwise";
  config.filter_fqns = {"lm_head", "experts"};
  EXPECT_EQ(Trainer(config).run().layers_converted, 14);
  config.run_dir = (folder_ / "experts_only").string();
  config.filter_fqns = {};
  config.select_fqns = {"experts"};
  EXPECT_EQ(Trainer(config).run().layers_converted, 1);
  config.run_dir = (folder_ / "tensorwise").string();
  config.recipe = "tensorwise";
  EXPECT_HAS(error_of([&] { Trainer trainer(config); }), "use rowwise");
}

}  // namespace
}  // namespace octavo::train
