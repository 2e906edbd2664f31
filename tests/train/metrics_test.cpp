#include "octavo/train/metrics.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <sstream>

namespace octavo::train {
namespace {

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("octavo_metrics_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string content(const std::filesystem::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
};

TEST_F(MetricsTest, EachLineIsOnDiskWhenWriteReturns) {
  const auto path = folder_ / "deep" / "metrics.jsonl";
  JsonLines lines(path, JsonLines::Mode::kTruncate);
  lines.write({{"event", "train"}, {"step", 1}});
  EXPECT_EQ(content(path), "{\"event\":\"train\",\"step\":1}\n");
  lines.write({{"step", 2}});
  EXPECT_EQ(content(path), "{\"event\":\"train\",\"step\":1}\n{\"step\":2}\n");
}

TEST_F(MetricsTest, AppendingKeepsWhatIsThere) {
  const auto path = folder_ / "metrics.jsonl";
  { JsonLines(path, JsonLines::Mode::kAppend).write({{"step", 1}}); }
  { JsonLines(path, JsonLines::Mode::kAppend).write({{"step", 2}}); }
  EXPECT_EQ(content(path), "{\"step\":1}\n{\"step\":2}\n");
  { JsonLines(path, JsonLines::Mode::kTruncate).write({{"step", 3}}); }
  EXPECT_EQ(content(path), "{\"step\":3}\n");
}

TEST_F(MetricsTest, AppendingCutsOffATornLine) {
  const auto path = folder_ / "metrics.jsonl";
  const std::string whole = "{\"step\":1}\n{\"step\":2}\n";
  for (const std::string& torn : {std::string("{\"ste"), std::string("{\"step\":3}"),
                                  std::string(100000, 'x'), std::string()}) {
    std::ofstream(path, std::ios::binary) << whole << torn;
    { JsonLines(path, JsonLines::Mode::kAppend).write({{"step", 3}}); }
    EXPECT_EQ(content(path), whole + "{\"step\":3}\n") << torn.size();
  }
  std::ofstream(path, std::ios::binary) << "{\"ste";  // not one whole line
  { JsonLines(path, JsonLines::Mode::kAppend).write({{"step", 1}}); }
  EXPECT_EQ(content(path), "{\"step\":1}\n");
}

TEST_F(MetricsTest, WriteJsonKeepsTheOrderOfAnOrderedObject) {
  const auto path = folder_ / "ordered.json";
  write_json(path, nlohmann::ordered_json{{"recipe", "rowwise"}, {"flavour", "ocp"}, {"a", 1}});
  EXPECT_EQ(content(path),
            "{\n  \"recipe\": \"rowwise\",\n  \"flavour\": \"ocp\",\n  \"a\": 1\n}\n");
}

TEST_F(MetricsTest, AFullDiskIsAnErrorThatNamesThePath) {
  JsonLines lines("/dev/full", JsonLines::Mode::kAppend);
  try {
    lines.write({{"step", 1}});
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("/dev/full"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("free some space"), std::string::npos);
  }
}

TEST_F(MetricsTest, WriteJsonReplacesWholeOrNotAtAll) {
  const auto path = folder_ / "summary.json";
  write_json(path, {{"a", 1}});
  EXPECT_EQ(nlohmann::json::parse(content(path))["a"], 1);
  std::filesystem::create_directory(folder_ / "summary.json.tmp");  // the temporary cannot be made
  EXPECT_THROW(write_json(path, {{"a", 2}}), c10::Error);
  EXPECT_EQ(nlohmann::json::parse(content(path))["a"], 1);
}

TEST(Metrics, MemoryIsThisProcesses) {
  const Memory memory = process_memory();
  EXPECT_GT(memory.resident, 1 << 20);
  EXPECT_GE(memory.peak, memory.resident);
}

TEST(Metrics, ProgressLineSaysEverything) {
  Progress progress{.step = 120,
                    .steps = 1000,
                    .loss = 2.34561,
                    .gradient_norm = 0.53,
                    .lr = 2.9e-3,
                    .tokens_per_second = 12345.4,
                    .mfu = {},
                    .memory = {512 << 20, 600 << 20},
                    .seconds_left = 80};
  EXPECT_EQ(progress_line(progress),
            "step  120/1000  loss 2.3456  norm 0.53  lr 0.0029  12345 tok/s  MFU n/a  512 MiB "
            "(peak 600)  1m20s left");
  progress.mfu = 0.4567;
  EXPECT_NE(progress_line(progress).find("MFU 45.7%"), std::string::npos);
}

TEST(Metrics, ThousandsHaveCommas) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(with_commas(8030261248), "8,030,261,248");
}

TEST(Metrics, Durations) {
  EXPECT_EQ(duration(0.4), "0s");
  EXPECT_EQ(duration(59.6), "1m00s");
  EXPECT_EQ(duration(80), "1m20s");
  EXPECT_EQ(duration(7500), "2h05m");
  EXPECT_EQ(duration(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Metrics, MedianOfTheStepsAfterTheTenth) {
  EXPECT_EQ(median({}), 0.0);
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
  std::vector<double> seconds(10, 100.0);
  EXPECT_EQ(seconds_per_step(seconds), 100.0);
  for (double s : {1.0, 5.0, 2.0}) seconds.push_back(s);
  EXPECT_EQ(seconds_per_step(seconds), 2.0);
}

}  // namespace
}  // namespace octavo::train
