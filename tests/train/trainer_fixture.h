#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "octavo/train/checkpoint.h"
#include "octavo/train/config.h"

/// A small run in a folder of its own, for the trainer's tests.
namespace octavo::train {

/// A log that raises a signal when a line holds a text: a stop at a known step.
class SignallingLog : public std::stringbuf {
 public:
  SignallingLog(std::string trigger, int signal) : trigger_(std::move(trigger)), signal_(signal) {}
  int sync() override {
    if (!raised_ && str().find(trigger_) != std::string::npos) {
      raised_ = true;
      std::raise(signal_);
    }
    return 0;
  }

 private:
  std::string trigger_;
  int signal_;
  bool raised_ = false;
};

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("octavo_trainer_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  TrainConfig tiny(const std::string& run) const {
    TrainConfig config;
    config.model.dim = 48;
    config.model.layers = 2;
    config.model.heads = 4;
    config.model.kv_heads = 2;
    config.model.hidden = 112;
    config.model.max_sequence = 64;
    config.train_data = OCTAVO_SOURCE_DIR "/examples/data/tinyshakespeare.txt";
    config.batch = 4;
    config.sequence = 32;
    config.steps = 12;
    config.warmup_steps = 3;
    config.lr = 5e-3;
    config.log_every = 1;
    config.validation_batches = 4;
    config.threads = 1;  // several wait for each other on a busy machine
    config.run_dir = (folder_ / run).string();
    return config;
  }

  static std::vector<nlohmann::json> metrics(const TrainConfig& config) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(std::filesystem::path(config.run_dir) / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  static std::map<std::string, at::Tensor> saved_parameters(const TrainConfig& config) {
    std::map<std::string, at::Tensor> parameters;
    const CheckpointState state = load_checkpoint(config.run_dir);
    for (const auto& [name, tensor] : state.parameters) parameters[name] = tensor.clone();
    for (const auto& [name, tensor] : state.optimizer) parameters["adamw " + name] = tensor.clone();
    return parameters;
  }

  std::filesystem::path folder_;
};

}  // namespace octavo::train

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
