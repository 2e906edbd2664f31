#include "octavo/train/step_log.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/error_of.h"

namespace octavo::train {
namespace {

class StepLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("octavo_step_log_" + std::to_string(getpid()));
    config_.run_dir = folder_.string();
    config_.batch = 2;
    config_.sequence = 8;
    config_.steps = 7;
    config_.log_every = 3;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  StepLog log(JsonLines& metrics, c10::Device device = at::kCPU) {
    return StepLog(config_, device, metrics,
                   [this](const std::string& line) { progress_.push_back(line); });
  }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> out;
    std::ifstream file(folder_ / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  static at::Tensor figures(double loss, double norm = 1.0) {
    return torch::tensor({loss, norm, 0.0, 0.0}, at::kDouble);
  }

  TrainConfig config_;
  std::filesystem::path folder_;
  std::vector<std::string> progress_;
};

TEST_F(StepLogTest, StepsReadTogetherShareTheirTime) {
  JsonLines metrics(folder_ / "metrics.jsonl", JsonLines::Mode::kTruncate);
  StepLog steps = log(metrics);
  for (int step = 1; step <= 3; ++step) {
    steps.begin();
    steps.add(step, 0.1 * step, figures(5.0 - step));
  }
  EXPECT_TRUE(steps.losses().empty() && lines().empty());
  steps.read();
  EXPECT_EQ(steps.losses(), (std::vector<double>{4.0, 3.0, 2.0}));
  const auto written = lines();
  ASSERT_EQ(written.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(written[i]["step"], i + 1);
    EXPECT_EQ(written[i]["loss"], 4.0 - i);
    EXPECT_EQ(written[i]["lr"], 0.1 * (i + 1));
    EXPECT_EQ(written[i]["seconds"], written[0]["seconds"]);
  }
  EXPECT_EQ(progress_.size(), 2u);  // the first and the third
  steps.read();                     // nothing is pending
  EXPECT_EQ(lines().size(), 3u);
}

TEST_F(StepLogTest, AGpusFiguresAreReadWhenALineIsDue) {
  JsonLines metrics(folder_ / "metrics.jsonl", JsonLines::Mode::kTruncate);
  StepLog cpu = log(metrics), gpu = log(metrics, c10::Device(at::kCUDA, 0));
  EXPECT_TRUE(cpu.due(1) && cpu.due(2) && cpu.due(4));
  EXPECT_TRUE(gpu.due(1) && gpu.due(2));  // nothing has been read yet
  cpu.begin();
  cpu.add(1, 0.1, figures(1.0));
  cpu.read();
  EXPECT_TRUE(cpu.due(2));
}

TEST_F(StepLogTest, TheFirstStepThatIsNotFiniteIsNamedAfterTheLinesBefore) {
  JsonLines metrics(folder_ / "metrics.jsonl", JsonLines::Mode::kTruncate);
  StepLog steps = log(metrics);
  steps.begin();
  steps.add(4, 0.1, figures(2.0));
  steps.add(5, 0.1, figures(2.0, std::numeric_limits<double>::infinity()));
  steps.add(6, 0.1, figures(std::nan("")));
  const std::string error = testing::error_of([&] { steps.read(); });
  EXPECT_NE(error.find("gradient norm: inf at step 5"), error.npos) << error;
  EXPECT_NE(error.find("start again"), error.npos) << error;
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0]["step"], 4);
}

}  // namespace
}  // namespace octavo::train
