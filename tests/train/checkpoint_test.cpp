#include "octavo/train/checkpoint.h"
#include "tests/error_of.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

namespace octavo::train {
namespace {

using testing::error_of;

namespace fs = std::filesystem;

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "text: " << (text) << "\npart: " << (part)

CheckpointState state_of(std::int64_t step, std::int64_t elements = 16) {
  CheckpointState state;
  state.parameters = {{"a.weight", at::full({elements}, static_cast<float>(step))},
                      {"b.weight", at::ones({2, 3}, at::kBFloat16)}};
  state.optimizer = {{"a.weight.exp_avg", at::full({elements}, 0.5f)},
                     {"a.weight.step", at::full({}, static_cast<float>(step))}};
  state.rng = at::randint(0, 256, {5056}, at::kByte);
  state.step = step;
  state.data_position = 3 * step;
  state.config = make_config(
      {setting_from_text("steps", std::to_string(step + 1)), setting_from_text("lr", "0.1")});
  return state;
}

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    run_ = fs::temp_directory_path() / ("octavo_checkpoint_" + std::to_string(::getpid()));
    fs::remove_all(run_);
  }
  void TearDown() override { fs::remove_all(run_); }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(run_ / "checkpoints"))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

  fs::path run_;
};

TEST_F(Checkpoint, HoldsEverythingItWasGiven) {
  const CheckpointState saved = state_of(120);
  save_checkpoint(run_, saved);
  EXPECT_EQ(names(), std::vector<std::string>{"step-000120"});
  // A run's folder, its checkpoints/ and the checkpoint itself name the same thing.
  for (const fs::path& path : {run_, run_ / "checkpoints", run_ / "checkpoints" / "step-000120"}) {
    const CheckpointState read = load_checkpoint(path);
    EXPECT_EQ(read.step, 120);
    EXPECT_EQ(read.data_position, 360);
    EXPECT_EQ(to_json(read.config), to_json(saved.config));
    EXPECT_TRUE(at::equal(read.rng, saved.rng));
    const std::map<std::string, at::Tensor> parameters(read.parameters.begin(),
                                                       read.parameters.end());
    const std::map<std::string, at::Tensor> optimizer(read.optimizer.begin(), read.optimizer.end());
    ASSERT_EQ(parameters.size(), saved.parameters.size());
    ASSERT_EQ(optimizer.size(), saved.optimizer.size());
    for (const auto& [name, tensor] : saved.parameters)
      EXPECT_TRUE(at::equal(parameters.at(name), tensor)) << name;
    for (const auto& [name, tensor] : saved.optimizer)
      EXPECT_TRUE(at::equal(optimizer.at(name), tensor)) << name;
  }
  const CheckpointState model_only = load_checkpoint_model(run_);
  EXPECT_EQ(model_only.parameters.size(), 2u);
  EXPECT_TRUE(model_only.optimizer.empty());
  EXPECT_FALSE(model_only.rng.defined());
}

TEST_F(Checkpoint, KeepsTheNewestAndFindsThemByNumber) {
  EXPECT_FALSE(newest_checkpoint(run_).has_value());
  for (const std::int64_t step : {5, 30, 999999, 1000000}) save_checkpoint(run_, state_of(step));
  EXPECT_EQ(names(), (std::vector<std::string>{"step-1000000", "step-999999"}));
  EXPECT_EQ(newest_checkpoint(run_)->filename(), "step-1000000");
  EXPECT_EQ(load_checkpoint(run_).step, 1000000);
}

TEST_F(Checkpoint, TheSameStepIsReplaced) {
  save_checkpoint(run_, state_of(7));
  CheckpointState again = state_of(7);
  again.data_position = 99;
  save_checkpoint(run_, again);
  EXPECT_EQ(names(), std::vector<std::string>{"step-000007"});
  EXPECT_EQ(load_checkpoint(run_).data_position, 99);
}

TEST_F(Checkpoint, LeftoversOfKilledRunsAreIgnoredAndCleaned) {
  save_checkpoint(run_, state_of(1));
  const fs::path leftover = run_ / "checkpoints" / ".tmp-step-000002-writing";
  fs::create_directory(leftover);
  std::ofstream(leftover / "model.safetensors") << "half";
  fs::create_directory(run_ / "checkpoints" / "step-best");
  std::ofstream(run_ / "checkpoints" / "step-000009") << "a file";
  EXPECT_EQ(load_checkpoint(run_).step, 1);
  save_checkpoint(run_, state_of(3));
  EXPECT_EQ(names(),
            (std::vector<std::string>{"step-000001", "step-000003", "step-000009", "step-best"}));
}

TEST_F(Checkpoint, ANewestFolderWithoutItsStateIsNamedAndNeverRemoved) {
  for (const std::int64_t step : {1, 2}) save_checkpoint(run_, state_of(step));
  const fs::path folder = run_ / "checkpoints" / "step-000009";
  fs::create_directory(folder);
  EXPECT_EQ(*newest_checkpoint(run_), folder);
  const std::string error = error_of([&] { load_checkpoint(run_); });
  EXPECT_CONTAINS(error, folder.string());
  EXPECT_CONTAINS(error, "no state.json");
  save_checkpoint(run_, state_of(3));
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000002", "step-000003", "step-000009"}));
}

TEST_F(Checkpoint, CheckpointsThatCannotBeListedAreAnError) {
  fs::create_directories(run_);
  std::ofstream(run_ / "checkpoints") << "a file";
  EXPECT_CONTAINS(error_of([&] { newest_checkpoint(run_); }), "cannot list");
  EXPECT_CONTAINS(error_of([&] { load_checkpoint(run_); }), "cannot list");
}

TEST_F(Checkpoint, TheStepIsTheFoldersAndWithinTheRun) {
  save_checkpoint(run_, state_of(4));  // of 5
  const fs::path folder = *newest_checkpoint(run_), path = folder / "state.json";
  std::string text;
  {
    std::ifstream in(path);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::string written = "\"step\": 4";
  ASSERT_NE(text.find(written), std::string::npos);
  for (const char* step : {"-4", "3", "5", "6", "9223372036854775807"}) {
    std::string changed = text;
    changed.replace(changed.find(written), written.size(), "\"step\": " + std::string(step));
    std::ofstream(path) << changed;
    const std::string error = error_of([&] { load_checkpoint(run_); });
    EXPECT_CONTAINS(error, "step " + std::string(step) + " of 5 does not fit");
  }
  std::ofstream(path) << text;
  fs::rename(folder, run_ / "kept");  // any name that is not another step's
  EXPECT_EQ(load_checkpoint(run_ / "kept").step, 4);
}

TEST_F(Checkpoint, LaterOnesCanBeRemoved) {
  for (const std::int64_t step : {2, 4, 6}) {
    CheckpointState state = state_of(step);
    state.config.keep_checkpoints = 9;
    save_checkpoint(run_, state);
  }
  remove_checkpoints_after(run_, 4);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000002", "step-000004"}));
}

TEST_F(Checkpoint, NoSpaceLeavesTheOlderOneWhole) {
  save_checkpoint(run_, state_of(1));
  const auto fails_cleanly = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {65536, 65536};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { save_checkpoint(run_, state_of(2, 1000000)); });
    std::fprintf(stderr, "%s", error.c_str());
    return names() == std::vector<std::string>{"step-000001"};
  };
  EXPECT_EXIT(std::_Exit(fails_cleanly() ? 0 : 1), ::testing::ExitedWithCode(0),
              "step 2 not saved: .*File too large.*step-000001");
  EXPECT_EQ(load_checkpoint(run_).step, 1);
}

TEST_F(Checkpoint, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(run_) << "a file where the run's folder should be";
  EXPECT_CONTAINS(error_of([&] { save_checkpoint(run_, state_of(1)); }), "cannot make the folder");
}

TEST_F(Checkpoint, WhatIsNoCheckpointSaysWhatToGive) {
  EXPECT_CONTAINS(error_of([&] { load_checkpoint(run_); }), "no such folder");
  fs::create_directories(run_);
  EXPECT_CONTAINS(error_of([&] { load_checkpoint(run_); }), "holds no checkpoint");
  std::ofstream(run_ / "file") << "x";
  EXPECT_CONTAINS(error_of([&] { load_checkpoint(run_ / "file"); }), "is a file");
}

TEST_F(Checkpoint, EveryFileTruncatedOrMissing) {
  save_checkpoint(run_, state_of(4));
  const fs::path folder = *newest_checkpoint(run_);
  const fs::path kept = run_ / "kept";
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    fs::copy(folder, kept, fs::copy_options::recursive);
    fs::resize_file(kept / name, fs::file_size(kept / name) - 10);
    EXPECT_CONTAINS(error_of([&] { load_checkpoint(kept); }), name);
    EXPECT_CONTAINS(error_of([&] { load_checkpoint(kept); }), "truncated");
    fs::remove(kept / name);
    EXPECT_NE(error_of([&] { load_checkpoint(kept); }), "no error") << name;
    fs::remove_all(kept);
  }
}

TEST_F(Checkpoint, ANewerFormatIsNamed) {
  save_checkpoint(run_, state_of(4));
  const fs::path path = *newest_checkpoint(run_) / "state.json";
  std::string text;
  {
    std::ifstream in(path);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::string written = "\"version\": 1";
  ASSERT_NE(text.find(written), std::string::npos);
  text.replace(text.find(written), written.size(), "\"version\": 2");
  std::ofstream(path) << text;
  EXPECT_CONTAINS(error_of([&] { load_checkpoint(run_); }), "version 2");
}

// Two linears' worth of names, one of them tied under a second name.
struct Toy : torch::nn::Module {
  explicit Toy(bool tied, std::int64_t size = 4) {
    embedding = register_parameter("embedding", at::randn({size, 2}));
    norm = register_parameter("norm", at::randn({2}));
    head = register_parameter("head", tied ? embedding : at::randn({size, 2}));
  }
  torch::Tensor embedding, norm, head;
};

TEST(ModuleParameters, ATiedTensorIsStoredOnceUnderItsFirstName) {
  const NamedTensors plain = module_parameters(Toy(false));
  ASSERT_EQ(plain.size(), 3u);
  const NamedTensors tied = module_parameters(Toy(true));
  ASSERT_EQ(tied.size(), 2u);
  EXPECT_EQ(tied[0].first, "embedding");
}

TEST(LoadParameters, IsStrict) {
  Toy from(false), to(false);
  load_parameters(to, module_parameters(from));
  EXPECT_TRUE(at::equal(to.head, from.head) && at::equal(to.norm, from.norm));

  NamedTensors parameters = module_parameters(from);
  parameters.emplace_back("extra", at::ones({1}));
  EXPECT_CONTAINS(error_of([&] { load_parameters(to, parameters); }), "unexpected extra");
  parameters.erase(parameters.begin(), parameters.begin() + 1);
  EXPECT_CONTAINS(error_of([&] { load_parameters(to, parameters); }), "missing embedding");
  EXPECT_CONTAINS(error_of([&] { load_parameters(to, module_parameters(Toy(false, 5))); }),
                  "embedding is [5, 2]");
  NamedTensors wide = module_parameters(from);
  wide[1].second = wide[1].second.to(at::kDouble);
  const at::Tensor before = to.embedding.clone();
  EXPECT_CONTAINS(error_of([&] { load_parameters(to, wide); }), "double");
  EXPECT_TRUE(at::equal(to.embedding, before));  // nothing copied before everything is checked
}

TEST(LoadParameters, TiedAndUntied) {
  Toy tied(true), other(true), untied(false);
  load_parameters(other, module_parameters(tied));
  EXPECT_TRUE(at::equal(other.head, tied.embedding));
  EXPECT_TRUE(other.head.is_same(other.embedding));
  // Writers that store both names of a tied tensor.
  NamedTensors both = module_parameters(tied);
  both.emplace_back("head", tied.embedding.clone());
  load_parameters(other, both);
  both.back().second.add_(1);
  EXPECT_CONTAINS(error_of([&] { load_parameters(other, both); }), "head is tied");
  EXPECT_CONTAINS(error_of([&] { load_parameters(untied, module_parameters(tied)); }),
                  "missing head");
}

}  // namespace
}  // namespace octavo::train
