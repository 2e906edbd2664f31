#include "octavo/train/trainer.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <sstream>

#include "octavo/models/llama_accounting.h"
#include "octavo/nn/fusion.h"
#include "octavo/nn/linear.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/data.h"
#include "octavo/train/diverged.h"
#include "octavo/train/gemm_plans.h"
#include "octavo/train/json_file.h"
#include "octavo/train/memory_ledger.h"
#include "octavo/train/metrics.h"
#include "octavo/train/optimizer.h"
#include "octavo/train/prepare.h"
#include "octavo/train/resume.h"
#include "octavo/train/rng.h"
#include "octavo/train/run_header.h"
#include "octavo/train/run_lock.h"
#include "octavo/train/schedule.h"
#include "octavo/train/step_log.h"
#include "octavo/train/stop_signal.h"
#include "octavo/train/train_step.h"

namespace octavo::train {

namespace {

EvalRecipe eval_recipe_of(const TrainConfig& config) {
  if (config.eval_recipe == "trained") return EvalRecipe::kTrained;
  if (config.eval_recipe == "high_precision") return EvalRecipe::kHighPrecision;
  TORCH_CHECK(false, "eval_recipe: expected trained or high_precision, got '", config.eval_recipe,
              "'");
}

// The figures of the steps that another process did, where `path` is the summary of them all; not
// numbers (null in JSON) where it is not.
void take_step_figures(const std::filesystem::path& path, TrainResult& result) {
  const JsonResult summary = read_json(path);
  const bool fits = summary && summary.value.is_object() && summary.value.contains("steps") &&
                    summary.value["steps"] == result.steps;
  const auto figure = [&](const char* key) {
    const bool there = fits && summary.value.contains(key) && summary.value[key].is_number();
    return there ? summary.value[key].get<double>() : std::numeric_limits<double>::quiet_NaN();
  };
  result.train_loss = figure("train_loss");
  result.seconds_per_step = figure("seconds_per_step");
  result.tokens_per_second = figure("tokens_per_second");
}

PreparedModel prepare_threads_and_model(const TrainConfig& config) {
  if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
  return prepare_model(config);
}

}  // namespace

nlohmann::json to_json(const TrainResult& result) {
  return {{"recipe", result.recipe},
          {"flavour", result.flavour},
          {"layers_converted", result.layers_converted},
          {"layers_total", result.layers_total},
          {"parameters", result.parameters},
          {"steps", result.steps},
          {"threads", result.threads},
          {"train_loss", result.train_loss},
          {"validation_loss", result.validation_loss},
          {"eval_recipe", result.eval_recipe},
          {"seconds_per_step", result.seconds_per_step},
          {"tokens_per_second", result.tokens_per_second},
          {"seconds_total", result.seconds_total},
          {"peak_memory", result.peak_memory}};
}

struct Trainer::State {
  State(const TrainConfig& given, const TrainerOptions& options)
      : config(given),
        log(options.log),
        eval_recipe(eval_recipe_of(config)),
        data(open_data(config)),
        prepared(prepare_threads_and_model(config)),
        optimizer(module_parameters(*prepared.model), AdamW::Options::of(config)),
        train_step(prepared.model, optimizer, TrainStep::Options::of(config)),
        sampler(data.train, {.batch = config.batch,
                             .sequence = config.sequence,
                             .seed = config.seed,
                             .vocabulary = config.model.vocabulary}),
        validation(data.validation, {.batch = config.batch,
                                     .sequence = config.sequence,
                                     .vocabulary = config.model.vocabulary,
                                     .limit = config.validation_batches}),
        schedule(Schedule::of(config)) {
    nn::set_fusion(*prepared.model, config.fusion);
    if (config.weight_cache) nn::enable_weight_caches(*prepared.model);
  }

  void say(const std::string& line) const {
    if (log) *log << line << std::endl;
  }

  MicroBatches micro_batches() const;
  void save();
  double validate(EvalRecipe recipe);
  bool saved() const { return saved_step == step; }
  // In the step after those done: the first, and each that fp8_stats divides.
  bool samples_health() const {
    return config.fp8_stats > 0 && prepared.recipe &&
           (step == 0 || (step + 1) % config.fp8_stats == 0);
  }

  TrainConfig config;
  std::ostream* log;
  EvalRecipe eval_recipe;
  DataSplit data;
  PreparedModel prepared;
  AdamW optimizer;
  TrainStep train_step;
  BatchSampler sampler;
  ValidationBatches validation;
  Schedule schedule;
  std::int64_t step = 0;  // done
  std::int64_t saved_step = -1;
  std::vector<std::string> resume_lines;
};

// Of the next step, until somebody asks for a stop.
MicroBatches Trainer::State::micro_batches() const {
  return {.count = config.accumulation, .read = [this](std::int64_t i) -> std::optional<Batch> {
            if (StopSignal::requested()) return std::nullopt;
            return sampler.next(step, i);
          }};
}

void Trainer::State::save() {
  if (saved()) return;
  CheckpointState state;
  state.parameters = module_parameters(*prepared.model);
  check_finite(state.parameters, config, step);
  state.optimizer = optimizer.state();
  state.rng = rng_state();
  state.step = step;
  state.data_position = step * config.accumulation;
  state.config = config;
  save_checkpoint(config.run_dir, state);
  save_gemm_plans(config, prepared.device);
  saved_step = step;
}

double Trainer::State::validate(EvalRecipe recipe) {
  std::optional<HighPrecisionScope> scope;
  if (recipe == EvalRecipe::kHighPrecision) scope.emplace(prepared.model);
  return validation_loss(prepared.model, validation);
}

Trainer::Trainer(const TrainConfig& config, const TrainerOptions& options)
    : state_(std::make_unique<State>(config, options)) {
  State& s = *state_;
  const Start start = start_or_resume(config, s.prepared.model, s.optimizer);
  s.step = start.step;
  if (start.from_checkpoint) s.saved_step = start.step;
  s.resume_lines = start.lines;
  for (const std::string& line : load_gemm_plans(config, s.prepared.device))
    s.resume_lines.push_back(line);
}

Trainer::~Trainer() = default;

std::int64_t Trainer::step() const { return state_->step; }

double Trainer::evaluate(EvalRecipe recipe) {
  const double loss = state_->validate(recipe);
  check_validation_loss(loss, state_->config, state_->step);
  return loss;
}

TrainResult Trainer::run() {
  State& s = *state_;
  const TrainConfig& config = s.config;
  const auto begin = std::chrono::steady_clock::now();
  const std::filesystem::path run_dir = config.run_dir;
  const RunLock lock(run_dir);
  StopSignal stop;
  if (config.resume_step > 0) remove_checkpoints_after(run_dir, s.step);

  for (const std::string& line : run_header(config, s.prepared, s.data)) s.say(line);
  const MemoryLedger ledger = memory_ledger(config, s.prepared.model, s.optimizer);
  for (const std::string& line : ledger.lines()) s.say(line);
  for (const std::string& line : s.resume_lines) s.say(line);
  JsonLines metrics(run_dir / "metrics.jsonl",
                    config.resume ? JsonLines::Mode::kAppend : JsonLines::Mode::kTruncate);
  metrics.write({{"event", s.step > 0 ? "resume" : "start"},
                 {"step", s.step},
                 {"recipe", s.prepared.recipe_string()},
                 {"flavour", s.prepared.flavour()},
                 {"fast_accumulation", s.prepared.fast_accumulation()},
                 {"threads", at::get_num_threads()},
                 {"memory", ledger.json()},
                 {"config", nlohmann::json::parse(to_json(config))}});
  StepLog steps(config, s.prepared.device, metrics, [&](const std::string& line) { s.say(line); });

  const auto record_validation = [&] {
    const double loss = s.validate(s.eval_recipe);
    metrics.write({{"event", "validation"},
                   {"step", s.step},
                   {"loss", loss},
                   {"eval_recipe", config.eval_recipe}});
    std::ostringstream line;
    line << "validation at step " << s.step << ": " << loss << " nats per token";
    s.say(line.str());
    check_validation_loss(loss, config, s.step);
    return loss;
  };
  const auto save = [&] {
    if (s.saved()) return;
    s.save();
    metrics.write({{"event", "checkpoint"}, {"step", s.step}});
  };
  const auto falls_on = [&](std::int64_t every) {
    return every > 0 && s.step % every == 0 && s.step != config.steps;
  };

  while (s.step < config.steps) {
    steps.begin();
    const double lr = s.schedule.at(s.step);
    nlohmann::ordered_json health;
    const std::optional<at::Tensor> figures =
        s.train_step.run(s.micro_batches(), lr, s.samples_health() ? &health : nullptr);
    if (!figures) break;
    steps.add(++s.step, lr, *figures, std::move(health));
    const bool saves = falls_on(config.checkpoint_every);
    const bool validates = falls_on(config.validate_every);
    // Nothing is saved or validated after a step that nobody knows to be finite.
    if (saves || validates || steps.due(s.step)) steps.read();
    if (saves) save();
    if (validates) record_validation();
  }
  steps.read();
  save();

  TrainResult result;
  result.recipe = s.prepared.recipe_string();
  result.flavour = s.prepared.flavour();
  result.layers_converted = s.prepared.layers_converted();
  result.layers_total = s.prepared.layers_total();
  result.parameters = models::parameter_count(config.model).total();
  result.steps = s.step;
  result.threads = at::get_num_threads();
  result.eval_recipe = config.eval_recipe;
  result.losses = steps.losses();
  if (result.losses.empty()) {
    take_step_figures(run_dir / "summary.json", result);
  } else {
    result.train_loss = result.losses.back();
    result.seconds_per_step = seconds_per_step(steps.step_seconds());
    result.tokens_per_second =
        static_cast<double>(config.batch * config.sequence * config.accumulation) /
        result.seconds_per_step;
  }
  if (s.step < config.steps) {
    result.interrupted = true;
    s.say("stopped after step " + std::to_string(s.step) + " and saved; go on with resume = true");
  } else {
    result.validation_loss = record_validation();
  }
  result.seconds_total =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.peak_memory = memory_of(s.prepared.device).peak;
  save_gemm_plans(config, s.prepared.device);  // validation has shapes of its own
  if (!result.interrupted) write_json(run_dir / "summary.json", to_json(result));
  return result;
}

}  // namespace octavo::train
