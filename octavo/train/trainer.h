#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "octavo/train/config.h"

namespace octavo::train {

/// What a run came to. summary.json holds the same (to_json).
struct TrainResult {
  std::string recipe;   ///< recipe_text(): canonical but for the flavour, or "high_precision"
  std::string flavour;  ///< "ocp" or "fnuz" as used; "none" without a recipe
  std::int64_t layers_converted = 0;
  std::int64_t layers_total = 0;  ///< every nn::Linear (lm_head too) and nn::Experts of the model
  std::int64_t parameters = 0;    ///< tied ones once
  std::int64_t steps = 0;         ///< done, those before a resume included
  std::int64_t threads = 0;       ///< LibTorch's, in this process
  double train_loss = 0.0;        ///< of the last step; NaN (null in JSON) where nobody knows
  double validation_loss = 0.0;   ///< nats per token, with the products eval_recipe names
  std::string eval_recipe;        ///< "trained" or "high_precision"
  /// Median of the steps after the tenth, those of this process. Where it had none to do, this,
  /// tokens_per_second and train_loss are the summary's that was there, or NaN (null in JSON).
  double seconds_per_step = 0.0;
  double tokens_per_second = 0.0;
  double seconds_total = 0.0;    ///< of this process: training, validation and checkpoints
  std::int64_t peak_memory = 0;  ///< bytes: of the process, on a GPU of the tensors there
  bool interrupted =
      false;  ///< stopped by SIGINT or SIGTERM: saved, neither validated nor summed up
  std::vector<double> losses;  ///< one a step of this process
};

nlohmann::json to_json(const TrainResult& result);

/// Which products validation uses.
enum class EvalRecipe : std::uint8_t { kTrained, kHighPrecision };

struct TrainerOptions {
  std::ostream* log = nullptr;  ///< progress lines; nullptr: none
};

/// One training run: model and data from the configuration, the loop, and what it leaves in
/// config.run_dir (metrics.jsonl, summary.json, checkpoints/step-*).
///
/// The loss of a step is the mean over its micro-batches. Two runs of equal configuration, threads
/// and machine kind have equal bits, resumed ones and those with activation checkpointing too.
class Trainer {
 public:
  /// Builds the model (weights from config.seed), converts it, opens the data, and with
  /// config.resume loads the newest checkpoint or that of config.resume_step. Errors name the key
  /// and the repair, for a damaged checkpoint which folder to remove.
  explicit Trainer(const TrainConfig& config, const TrainerOptions& options = {});
  ~Trainer();

  /// Trains to config.steps, validates, saves, writes summary.json.
  /// A loss or gradient norm that is not finite is an error that names the step and what to do
  /// (on a GPU, where figures are read every log_every steps, it can come that much later);
  /// the parameters are those before that step, earlier checkpoints and metrics stay. Parameters
  /// whose norm is not finite are an error too where they would be saved, and are not. So is a
  /// validation loss that is not finite, after its line in the metrics; at the end of the run the
  /// checkpoint is saved before, and there is no summary.
  /// SIGINT and SIGTERM finish the micro-batch and drop its step unless that was the last of it
  /// (with cuda_graph: finish the step), save, and return `interrupted`; a second one kills.
  TrainResult run();

  /// Mean loss over the validation tokens, nats per token; leaves the model as it was. An error
  /// where it is not finite.
  double evaluate(EvalRecipe recipe = EvalRecipe::kTrained);

  std::int64_t step() const;  ///< steps done

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo::train
