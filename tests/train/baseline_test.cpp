#include "octavo/train/baseline.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

namespace octavo::train {
namespace {

const std::string kText = OCTAVO_SOURCE_DIR "/examples/data/tinyshakespeare.txt";
const std::filesystem::path kFolder = OCTAVO_SOURCE_DIR "/tests/loss_baselines";

Baseline made_up() {
  return {.machine = {.torch = "2.11.0",
                      .processor = "A, model 1",
                      .capability = "AVX2",
                      .mkl = "default",
                      .threads = 1},
          .run = "rowwise flavour ocp",
          .losses = {5.5, 0x1.91eb851eb851fp+1, 2.75},
          .validation_loss = 2.8};
}
const BaselineCase kRowwise{"rowwise_ocp", "rowwise", "ocp"};

class BaselineCaseTest : public ::testing::TestWithParam<BaselineCase> {};

// The check of `octavo baseline check`: this build against the committed losses.
TEST_P(BaselineCaseTest, ThisBuildHasTheCommittedLosses) {
  const Baseline expected = read_baseline(kFolder / (GetParam().name + ".txt"));
  const Baseline actual = run_baseline(GetParam(), kText);
  const BaselineComparison result = compare_baselines(GetParam(), expected, actual);
  EXPECT_TRUE(result.passed) << result.message;
}

INSTANTIATE_TEST_SUITE_P(All, BaselineCaseTest, ::testing::ValuesIn(baseline_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Baseline, CoversHighPrecisionAndEveryRecipeAndFlavour) {
  std::string names;
  for (const BaselineCase& which : baseline_cases()) names += which.name + " ";
  EXPECT_EQ(
      names,
      "high_precision tensorwise_ocp tensorwise_fnuz rowwise_ocp rowwise_fnuz "
      "rowwise_with_gw_hp_ocp rowwise_with_gw_hp_fnuz blockwise_ocp blockwise_fnuz mxfp8_ocp ");
}

TEST(Baseline, FilesKeepEveryBit) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("octavo_baseline_" + std::to_string(getpid()) + ".txt");
  const Baseline written = made_up();
  write_baseline(path, written);
  const Baseline read = read_baseline(path);
  EXPECT_EQ(read.machine, written.machine);
  EXPECT_EQ(read.run, written.run);
  EXPECT_EQ(read.losses, written.losses);
  EXPECT_EQ(read.validation_loss, written.validation_loss);

  std::ifstream in(path);
  const std::string content((std::istreambuf_iterator<char>(in)), {});
  EXPECT_NE(content.find("\n0x1.91eb851eb851fp+1\n"), std::string::npos) << content;
  const auto refused = [&](const std::string& text) {
    std::ofstream(path) << text;
    EXPECT_THROW(read_baseline(path), c10::Error) << text;
  };
  refused("");
  refused("something else\n" + content);
  refused(content.substr(0, content.rfind("0x")));  // the last loss is gone
  refused(content.substr(0, 60));
  refused(content + "nonsense\n");
  std::filesystem::remove(path);
  EXPECT_THROW(read_baseline(path), c10::Error);
  EXPECT_THROW(write_baseline("/nowhere/at/all.txt", written), c10::Error);
}

TEST(Baseline, OnTheSameMachineTheLastBitCounts) {
  const Baseline expected = made_up();
  EXPECT_TRUE(compare_baselines(kRowwise, expected, made_up()).passed);
  Baseline actual = made_up();
  actual.losses[1] = std::nextafter(actual.losses[1], 9.0);
  const BaselineComparison result = compare_baselines(kRowwise, expected, actual);
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.message.find("first at step 2"), std::string::npos) << result.message;
  actual = made_up();
  actual.validation_loss = std::nextafter(actual.validation_loss, 9.0);
  EXPECT_FALSE(compare_baselines(kRowwise, expected, actual).passed);
}

TEST(Baseline, OnAnotherMachineTheBandDecides) {
  for (const BaselineCase& which : {kRowwise, baseline_cases()[0]}) {
    const double band =
        which.recipe == "high_precision" ? kBaselineBand.high_precision : kBaselineBand.fp8;
    const auto altered = [&](double factor) {
      Baseline actual = made_up();
      actual.machine.processor = "B, model 2";
      actual.losses[2] *= factor;
      return compare_baselines(which, made_up(), actual);
    };
    EXPECT_TRUE(altered(1.0).passed);
    EXPECT_TRUE(altered(1.0 + 0.9 * band).passed);
    EXPECT_TRUE(altered(1.0 - 0.9 * band).passed);
    EXPECT_FALSE(altered(1.0 + 1.1 * band).passed);
    EXPECT_FALSE(altered(1.0 - 1.1 * band).passed);
    EXPECT_FALSE(altered(std::numeric_limits<double>::quiet_NaN()).passed);
  }
}

TEST(Baseline, AnotherRunDoesNotPass) {
  Baseline actual = made_up();
  actual.run += " lr 1";
  EXPECT_FALSE(compare_baselines(kRowwise, made_up(), actual).passed);
  actual = made_up();
  actual.losses.pop_back();
  EXPECT_FALSE(compare_baselines(kRowwise, made_up(), actual).passed);
}

TEST(Baseline, NaNInTheMiddleIsNotHiddenByLaterLosses) {
  Baseline actual = made_up();
  actual.machine.threads = 2;
  actual.losses[0] = std::numeric_limits<double>::quiet_NaN();
  const BaselineComparison result = compare_baselines(kRowwise, made_up(), actual);
  EXPECT_FALSE(result.passed);
  EXPECT_TRUE(std::isnan(result.largest_difference));
}

}  // namespace
}  // namespace octavo::train
