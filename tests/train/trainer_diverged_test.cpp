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

TEST_F(TrainerTest, ANonFiniteLossIsAnErrorAndKeepsWhatWasWritten) {
  TrainConfig config = tiny("diverged");
  config.checkpoint_every = 1;
  config.warmup_steps = 0;
  config.lr = 1e13;
  const std::string error = error_of([&] { Trainer(config).run(); });
  EXPECT_HAS(error, "at step 2");
  EXPECT_HAS(error, "Lower lr");
  EXPECT_HAS(error, "those of step 1)");
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  const auto lines = metrics(config);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1]["event"], "train");
  EXPECT_EQ(load_checkpoint(config.run_dir).step, 1);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(config.run_dir) / "summary.json"));
}

TEST_F(TrainerTest, ANonFiniteValidationLossIsAnErrorAfterItsLine) {
  // The only step is taken with a finite loss; what it leaves has none. (From 1e18 on the
  // parameters' own norms overflow, which is found before.)
  TrainConfig config = tiny("exploded");
  config.steps = 1;
  config.warmup_steps = 0;
  config.lr = 1e13;
  const std::string error = error_of([&] { Trainer(config).run(); });
  EXPECT_HAS(error, "validation loss: ");
  EXPECT_HAS(error, "after step 1");
  EXPECT_HAS(error, "Lower lr (now 1e+13)");
  const auto lines = metrics(config);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1]["event"], "train");
  EXPECT_EQ(lines[2]["event"], "checkpoint");
  EXPECT_EQ(lines[3]["event"], "validation");
  EXPECT_TRUE(lines[3]["loss"].is_null());
  EXPECT_EQ(load_checkpoint(config.run_dir).step, 1);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(config.run_dir) / "summary.json"));
  config.resume = true;
  Trainer again(config);
  EXPECT_HAS(error_of([&] { again.evaluate(); }), "validation loss: ");
}

TEST_F(TrainerTest, ParametersThatOverflowAreNotSaved) {
  TrainConfig config = tiny("overflow");
  config.steps = 4;
  config.warmup_steps = 0;
  Trainer(config).run();  // a good checkpoint, of step 4
  config.resume = true;
  config.steps = 5;
  config.lr = 1e30;  // every RMSNorm makes zeros of what comes: the loss is ln 256, and finite
  const std::string error = error_of([&] { Trainer(config).run(); });
  EXPECT_HAS(error, "parameters: their norm is inf after step 5");
  EXPECT_HAS(error, "resume_step");
  EXPECT_HAS(error, "those of step 4)");
  EXPECT_EQ(load_checkpoint(config.run_dir).step, 4);
}

}  // namespace
}  // namespace octavo::train
