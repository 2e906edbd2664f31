#include "octavo/train/trainer.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "octavo/train/prepare.h"
#include "tests/error_of.h"
#include "tests/train/trainer_fixture.h"

namespace octavo::train {
namespace {

using testing::error_of;

class ResumeTest : public TrainerTest, public ::testing::WithParamInterface<std::string> {
 protected:
  TrainConfig short_run(const std::string& run) const {
    TrainConfig config = tiny(run);
    config.recipe = GetParam();
    config.model.layers = 1;
    config.steps = 6;
    config.validation_batches = 1;
    return config;
  }
};

std::vector<std::string> resumed_recipes() {
  std::vector<std::string> recipes = recipe_names();
  recipes.insert(recipes.begin(), "high_precision");
  recipes.push_back("tensorwise(flavour=fnuz)");
  return recipes;
}

TEST_P(ResumeTest, IsBitEqualToAnUninterruptedRun) {
  TrainConfig config = short_run("whole");
  config.accumulation = 2;
  const TrainResult whole = Trainer(config).run();
  const auto expected = saved_parameters(config);

  config.run_dir = (folder_ / "stopped").string();
  SignallingLog stop("step 4/6", SIGTERM);
  std::ostream log(&stop);
  const TrainResult first = Trainer(config, {.log = &log}).run();
  EXPECT_TRUE(first.interrupted);
  EXPECT_EQ(first.steps, 4);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(config.run_dir) / "summary.json"));

  torch::manual_seed(999);  // a new process would have another generator
  config.resume = true;
  Trainer second(config);
  EXPECT_EQ(second.step(), 4);
  const TrainResult rest = second.run();
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(losses, whole.losses);  // doubles, by their bits
  EXPECT_EQ(rest.validation_loss, whole.validation_loss);
  const auto actual = saved_parameters(config);
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::equal(actual.at(name), tensor)) << name;
  }
}

TEST_P(ResumeTest, ActivationCheckpointingChangesNoBit) {
  TrainConfig config = short_run("plain");
  config.steps = 3;
  const TrainResult plain = Trainer(config).run();
  for (const auto mode :
       {models::ActivationCheckpointing::kSelective, models::ActivationCheckpointing::kBlocks}) {
    config.run_dir = (folder_ / ("checkpointed" + std::to_string(int(mode)))).string();
    config.activation_checkpointing = mode;
    const TrainResult checkpointed = Trainer(config).run();
    EXPECT_EQ(checkpointed.losses, plain.losses);
    EXPECT_EQ(checkpointed.validation_loss, plain.validation_loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ResumeTest, ::testing::ValuesIn(resumed_recipes()),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : info.param)
                             if (c != ')') name += std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST_F(TrainerTest, MasterWeightsResumeBitEqual) {
  TrainConfig config = tiny("masters");
  config.dtype = "bfloat16";
  config.master_weights = true;
  config.recipe = "rowwise";
  config.model.layers = 1;
  config.steps = 6;
  config.accumulation = 2;
  const TrainResult whole = Trainer(config).run();
  const auto expected = saved_parameters(config);
  EXPECT_EQ(expected.at("adamw model.norm.weight.master").scalar_type(), at::kFloat);
  EXPECT_EQ(expected.at("model.norm.weight").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(torch::equal(expected.at("adamw model.norm.weight.master").to(at::kBFloat16),
                           expected.at("model.norm.weight")));

  config.run_dir = (folder_ / "masters_stopped").string();
  SignallingLog stop("step 3/6", SIGTERM);
  std::ostream log(&stop);
  Trainer(config, {.log = &log}).run();
  config.resume = true;
  EXPECT_EQ(Trainer(config).run().validation_loss, whole.validation_loss);
  for (const auto& [name, tensor] : saved_parameters(config)) {
    EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
  }
  config.master_weights = false;  // the masters would be lost
  EXPECT_HAS(error_of([&] { Trainer trainer(config); }),
             "use the configuration the checkpoint was made with");
}

// Raises SIGTERM when a forward pass begins: the n-th of this thread while it lives.
class SignalAtForward {
 public:
  explicit SignalAtForward(int n) {
    left_ = n;
    passes = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&on_call).scopes({at::RecordScope::FUNCTION}));
  }
  ~SignalAtForward() { at::removeCallback(handle_); }

  static inline int passes = 0;

 private:
  static std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "aten::embedding") return nullptr;
    ++passes;
    if (--left_ == 0) std::raise(SIGTERM);
    return nullptr;
  }
  static inline int left_ = 0;
  at::CallbackHandle handle_;
};

TEST_F(TrainerTest, AStopBetweenMicroBatchesDropsTheStep) {
  TrainConfig config = tiny("whole");
  config.recipe = "rowwise";
  config.weight_cache = true;
  config.model.layers = 1;
  config.steps = 4;
  config.accumulation = 3;
  config.validation_batches = 1;
  const TrainResult whole = Trainer(config).run();
  const auto expected = saved_parameters(config);
  // The second micro-batch of the first step and of the third, and the last of the third.
  for (const auto& [pass, steps] : {std::pair{2, 0}, {8, 2}, {9, 3}}) {
    config.run_dir = (folder_ / std::to_string(pass)).string();
    config.resume = false;
    Trainer trainer(config);
    TrainResult first;
    {
      const SignalAtForward signal(pass);
      first = trainer.run();
    }
    EXPECT_EQ(SignalAtForward::passes, pass);  // nothing was computed after it
    EXPECT_TRUE(first.interrupted);
    EXPECT_EQ(first.steps, steps);
    EXPECT_EQ(first.losses.size(), std::size_t(steps));
    EXPECT_EQ(checkpoints_of(config.run_dir).rbegin()->first, steps);

    config.resume = true;
    const TrainResult rest = Trainer(config).run();
    std::vector<double> losses = first.losses;
    losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
    EXPECT_EQ(losses, whole.losses) << pass;
    EXPECT_EQ(rest.validation_loss, whole.validation_loss) << pass;
    for (const auto& [name, tensor] : saved_parameters(config)) {
      EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << pass << " " << name;
    }
  }
}

TEST_F(TrainerTest, SigintStopsTooAndTheOldHandlerComesBack) {
  static int calls = 0;
  std::signal(SIGINT, [](int) { ++calls; });
  TrainConfig config = tiny("sigint");
  SignallingLog stop("step  1/12", SIGINT);
  std::ostream log(&stop);
  const TrainResult result = Trainer(config, {.log = &log}).run();
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps, 1);
  EXPECT_EQ(calls, 0);
  std::raise(SIGINT);
  EXPECT_EQ(calls, 1);
  std::signal(SIGINT, SIG_DFL);
}

TEST_F(TrainerTest, ADamagedNewestCheckpointSaysWhichFolderToRemove) {
  TrainConfig config = tiny("damaged");
  config.model.layers = 1;
  config.steps = 3;
  config.checkpoint_every = 1;
  Trainer(config).run();
  config.resume = true;
  const std::filesystem::path newest = *newest_checkpoint(config.run_dir);
  ASSERT_EQ(newest.filename(), "step-000003");
  const std::string repair = "; remove " + newest.string() + " and resume again";

  std::string state;
  {
    std::ifstream in(newest / "state.json");
    state.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::string moved = state;
  const std::string written = "\"data_position\": 3";
  ASSERT_NE(moved.find(written), std::string::npos) << moved;
  moved.replace(moved.find(written), written.size(), "\"data_position\": 7");
  std::ofstream(newest / "state.json") << moved;
  const std::string error = error_of([&] { Trainer trainer(config); });
  EXPECT_HAS(error, "data_position 7, expected step * accumulation, 3");
  EXPECT_HAS(error, repair);
  std::ofstream(newest / "state.json") << state;

  for (const char* name : {"optimizer.safetensors", "state.json"}) {
    std::filesystem::resize_file(newest / name, 40);
    const std::string damaged = error_of([&] { Trainer trainer(config); });
    EXPECT_HAS(damaged, name);
    EXPECT_HAS(damaged, repair);
  }
  std::filesystem::remove_all(newest);  // as it says
  EXPECT_EQ(Trainer(config).step(), 2);
}

TEST_F(TrainerTest, ARunIsNotOverwritten) {
  TrainConfig config = tiny("twice");
  config.steps = 2;
  Trainer(config).run();
  EXPECT_HAS(error_of([&] { Trainer again(config); }), "holds a run already (step 2)");
  config.resume = true;
  const TrainResult result = Trainer(config).run();  // nothing left to do but to validate
  EXPECT_EQ(result.steps, 2);
  EXPECT_TRUE(result.losses.empty());
  config.steps = 1;
  EXPECT_HAS(error_of([&] { Trainer shorter(config); }), "has done 2");
}

nlohmann::json summary_of(const TrainConfig& config) {
  std::ifstream file(std::filesystem::path(config.run_dir) / "summary.json");
  return nlohmann::json::parse(file);
}

TEST_F(TrainerTest, ResumingAFinishedRunKeepsWhatItsSummarySaysOfTheSteps) {
  TrainConfig config = tiny("finished");
  config.steps = 2;
  Trainer(config).run();
  const nlohmann::json before = summary_of(config);
  config.resume = true;
  Trainer(config).run();
  nlohmann::json after = summary_of(config);
  for (const char* key :
       {"train_loss", "seconds_per_step", "tokens_per_second", "validation_loss"}) {
    EXPECT_GT(after[key].get<double>(), 0.0) << key;
    EXPECT_EQ(after[key], before[key]) << key;
  }
  // A run that was killed between its last checkpoint and its summary: nobody knows its times.
  std::filesystem::remove(std::filesystem::path(config.run_dir) / "summary.json");
  Trainer(config).run();
  after = summary_of(config);
  EXPECT_TRUE(after["train_loss"].is_null() && after["seconds_per_step"].is_null());
  EXPECT_EQ(after["validation_loss"], before["validation_loss"]);
}

TEST_F(TrainerTest, AStepsCheckpointCanBeNamed) {
  TrainConfig config = tiny("named");
  config.steps = 6;
  config.checkpoint_every = 2;
  config.keep_checkpoints = 3;
  const TrainResult whole = Trainer(config).run();
  config.resume = true;
  config.resume_step = 2;
  std::ostringstream log;
  const TrainResult again = Trainer(config, {.log = &log}).run();
  EXPECT_HAS(log.str(), "step-000002; removing those of step 4, 6");
  EXPECT_EQ(again.losses, (std::vector<double>{whole.losses.begin() + 2, whole.losses.end()}));

  config.resume_step = 3;
  const std::string error = error_of([&] { Trainer none(config); });
  EXPECT_HAS(error, "resume_step: no checkpoint of step 3");
  EXPECT_HAS(error, "2, 4, 6");
  // Nothing is removed before the run begins.
  config.resume_step = 4;
  EXPECT_EQ(Trainer(config).step(), 4);
  EXPECT_EQ(checkpoints_of(config.run_dir).size(), 3u);
  EXPECT_EQ(checkpoints_of(config.run_dir).rbegin()->first, 6);
}

TEST_F(TrainerTest, ACheckpointWithoutRandomStateIsAnError) {
  TrainConfig config = tiny("rng");
  config.steps = 1;
  Trainer(config).run();
  const auto path = *newest_checkpoint(config.run_dir) / "optimizer.safetensors";
  NamedTensors tensors = SafetensorsFile(path).tensors();
  EXPECT_EQ(std::erase_if(tensors, [](const auto& named) { return named.first == "rng.cpu"; }), 1u);
  write_safetensors(path.string() + ".new", tensors);
  std::filesystem::rename(path.string() + ".new", path);
  config.resume = true;
  const std::string error = error_of([&] { Trainer trainer(config); });
  EXPECT_HAS(error, "no rng.cpu");
  EXPECT_HAS(error, "resume again");
}

TEST_F(TrainerTest, ResumingWithoutACheckpointStarts) {
  TrainConfig config = tiny("fresh");
  config.steps = 1;
  config.resume = true;
  std::ostringstream log;
  EXPECT_EQ(Trainer(config, {.log = &log}).run().steps, 1);
  EXPECT_HAS(log.str(), "starting at step 0");
}

TEST_F(TrainerTest, ResumingWithoutACheckpointKeepsTheMetrics) {
  // What a run leaves that was killed before its first checkpoint, in the middle of a line.
  TrainConfig config = tiny("killed");
  config.steps = 1;
  config.resume = true;
  std::filesystem::create_directories(config.run_dir);
  const auto path = std::filesystem::path(config.run_dir) / "metrics.jsonl";
  std::ofstream(path) << R"({"event":"start","step":0})"
                         "\n"
                      << R"({"event":"train","step":1,"loss":5.5})"
                         "\n"
                         R"({"event":"tr)";
  const TrainResult result = Trainer(config).run();
  std::vector<std::string> events;
  const auto lines = metrics(config);  // every line is whole
  for (const nlohmann::json& line : lines) events.push_back(line["event"]);
  EXPECT_EQ(events, (std::vector<std::string>{"start", "train", "start", "train", "checkpoint",
                                              "validation"}));
  EXPECT_EQ(lines[1]["loss"], 5.5);
  EXPECT_EQ(lines[3]["loss"].get<double>(), result.losses[0]);
}

TEST_F(TrainerTest, ResumingWithOtherSettingsSaysSo) {
  TrainConfig config = tiny("other");
  config.steps = 1;
  Trainer(config).run();
  config.resume = true;
  config.steps = 2;
  config.lr = 1e-4;
  std::ostringstream log;
  Trainer(config, {.log = &log}).run();
  EXPECT_HAS(log.str(), "changed     lr was 0.005 and is 0.0001");
  EXPECT_HAS(log.str(), "changed     steps was 1 and is 2");
  EXPECT_EQ(log.str().find("log_every was"), std::string::npos);
  config.model.dim = 64;
  EXPECT_NE(error_of([&] { Trainer wider(config); }), "no error");
}

}  // namespace
}  // namespace octavo::train
