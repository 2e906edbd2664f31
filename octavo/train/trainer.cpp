#include "octavo/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>

#include "octavo/device/peak_rates.h"
#include "octavo/models/llama_accounting.h"
#include "octavo/nn/fusion.h"
#include "octavo/nn/linear.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/data.h"
#include "octavo/train/fp8_stats.h"
#include "octavo/train/gemm_plans.h"
#include "octavo/train/init.h"
#include "octavo/train/json_file.h"
#include "octavo/train/metrics.h"
#include "octavo/train/optimizer.h"
#include "octavo/train/prepare.h"
#include "octavo/train/rng.h"
#include "octavo/train/run_header.h"
#include "octavo/train/run_lock.h"
#include "octavo/train/schedule.h"
#include "octavo/train/stop_signal.h"

namespace octavo::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

EvalRecipe eval_recipe_of(const TrainConfig& config) {
  if (config.eval_recipe == "trained") return EvalRecipe::kTrained;
  if (config.eval_recipe == "high_precision") return EvalRecipe::kHighPrecision;
  TORCH_CHECK(false, "eval_recipe: expected trained or high_precision, got '", config.eval_recipe,
              "'");
}

// Tokens of the busiest expert over its block's mean, of the block where that is largest.
double largest_expert_load(const models::Llama& model) {
  std::vector<at::Tensor> loads;
  for (const nn::Router& router : model->routers()) {
    const at::Tensor load = router->load().to(at::kDouble);
    loads.push_back(load.max() / load.mean());
  }
  return at::stack(loads).max().item<double>();
}

using Checkpoints = std::map<std::int64_t, std::filesystem::path>;

// "2, 4, 6".
std::string steps_text(const Checkpoints& checkpoints) {
  std::string text;
  for (const auto& [step, path] : checkpoints)
    text += (text.empty() ? "" : ", ") + std::to_string(step);
  return text;
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
    if (config.accumulation > 1) nn::accumulate_gradients(*prepared.model);
  }

  void say(const std::string& line) const {
    if (log) *log << line << std::endl;
  }

  void start_or_resume();
  void begin();
  double train_step();
  void save();
  CheckpointState load_resumed(const std::filesystem::path& folder) const;
  double validate(EvalRecipe recipe);
  void record_step(JsonLines& metrics, double loss, double lr,
                   const std::vector<double>& step_seconds) const;
  [[noreturn]] void fail_non_finite(const char* what, double value) const;
  void check_parameters() const;
  void check_validation(double loss) const;
  std::string way_on() const;
  // Of the device's dense bf16 rate; none where that is not known (the CPU).
  std::optional<double> mfu(double tokens_per_second) const {
    const auto peak = peak_rates(product_name(prepared.device));
    if (!peak) return std::nullopt;
    return models::flops_per_token(config.model, config.sequence).total() * tokens_per_second /
           peak->bf16;
  }
  // In the step after those done: the first, and each that fp8_stats divides.
  bool samples_health() const {
    return config.fp8_stats > 0 && prepared.recipe &&
           (step == 0 || (step + 1) % config.fp8_stats == 0);
  }
  bool has_experts() const { return config.model.moe.experts > 0; }
  std::int64_t tokens_per_step() const {
    return config.batch * config.sequence * config.accumulation;
  }

  TrainConfig config;
  std::ostream* log;
  EvalRecipe eval_recipe;
  DataSplit data;
  PreparedModel prepared;
  AdamW optimizer;
  BatchSampler sampler;
  ValidationBatches validation;
  Schedule schedule;
  std::int64_t step = 0;  // done
  std::int64_t saved_step = -1;
  double gradient_norm = 0.0;
  double aux_loss = 0.0;              // of the last step, mean over its micro-batches
  nlohmann::ordered_json fp8_layers;  // of the last step, where it was sampled
  double expert_load = 0.0;           // largest_expert_load() of the last step
  std::vector<std::string> resume_lines;
};

CheckpointState Trainer::State::load_resumed(const std::filesystem::path& folder) const {
  const std::string repair = "; remove " + folder.string() + " and resume again";
  CheckpointState state;
  try {
    state = load_checkpoint(folder);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, error.what_without_backtrace(), repair);
  }
  const std::int64_t position = state.step * state.config.accumulation;
  TORCH_CHECK(state.rng.defined(), folder.string(),
              "/optimizer.safetensors: no rng.cpu, the state of the random numbers", repair);
  TORCH_CHECK(state.data_position == position, folder.string(), "/state.json: data_position ",
              state.data_position, ", expected step * accumulation, ", position,
              ": other data than this octavo's would have been drawn", repair);
  return state;
}

// The weights of step 0.
void Trainer::State::begin() {
  if (config.init.empty()) return;
  resume_lines.push_back(load_init(config.init, prepared.model, optimizer));
  nn::invalidate_weight_caches(*prepared.model);
}

void Trainer::State::start_or_resume() {
  const auto found = checkpoints_of(config.run_dir);
  if (!config.resume) {
    // A later --resume would otherwise go on with the wrong run.
    TORCH_CHECK(found.empty(), "run_dir: '", config.run_dir, "' holds a run already (step ",
                found.rbegin()->first,
                "); go on with it by resume = true, name another run_dir, or remove it");
    begin();
    return;
  }
  const auto chosen = config.resume_step > 0 ? found.find(config.resume_step)
                      : found.empty()        ? found.end()
                                             : std::prev(found.end());
  TORCH_CHECK(config.resume_step == 0 || chosen != found.end(),
              "resume_step: no checkpoint of step ", config.resume_step, " in ", config.run_dir,
              "; there are those of ", found.empty() ? "no step" : steps_text(found));
  if (chosen == found.end()) {
    resume_lines.push_back("resume      no checkpoint in " + config.run_dir +
                           ": starting at step 0");
    begin();
    return;
  }
  const CheckpointState state = load_resumed(chosen->second);
  resume_lines = resume_differences(state.config, config);
  std::string from = "resume      from " + chosen->second.string();
  if (const auto later = std::next(chosen); later != found.end())
    from += "; removing those of step " + steps_text({later, found.end()});
  resume_lines.insert(resume_lines.begin(), from);
  load_parameters(*prepared.model, state.parameters);
  nn::invalidate_weight_caches(*prepared.model);
  optimizer.load_state(state.optimizer);
  set_rng_state(state.rng);
  step = saved_step = state.step;
  TORCH_CHECK(step <= config.steps, "steps: ", config.steps, " asked for, but the checkpoint ",
              chosen->second.string(), " has done ", step, "; ask for at least as many");
}

// What to do about a run that went wrong. Which checkpoint is still good nobody knows: parameters
// can be ruined long before a number is not finite.
std::string Trainer::State::way_on() const {
  const auto found = checkpoints_of(config.run_dir);
  std::ostringstream text;
  text << ". Lower lr (now " << config.lr
       << ") or clip_norm, or train longer in warmup_steps, and ";
  if (found.empty()) {
    text << "start again";
  } else {
    text << "go on with resume_step from a checkpoint of before it went wrong (there are those of "
            "step "
         << steps_text(found) << "), or start again in another run_dir";
  }
  return text.str();
}

void Trainer::State::fail_non_finite(const char* what, double value) const {
  TORCH_CHECK(false, what, ": ", value, " at step ", step + 1,
              "; the parameters were not changed by this step", way_on());
}

// Their norms in fp32: where one overflows the model's own sums of squares do too, and its loss can
// be a number that means nothing (RMSNorm makes zeros of what is infinite).
void Trainer::State::check_parameters() const {
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters;
  for (const auto& named : module_parameters(*prepared.model)) parameters.push_back(named.second);
  const double norm =
      at::linalg_vector_norm(at::stack(at::_foreach_norm(parameters, 2, at::kFloat))).item<float>();
  TORCH_CHECK(std::isfinite(norm), "parameters: their norm is ", norm, " after step ", step,
              "; the training diverged and this step is not saved", way_on());
}

void Trainer::State::check_validation(double loss) const {
  TORCH_CHECK(std::isfinite(loss), "validation loss: ", loss, " after step ", step,
              "; the training diverged", way_on());
}

// One optimiser step; the mean loss of its micro-batches (cross-entropy alone), gradient_norm,
// aux_loss and expert_load.
double Trainer::State::train_step() {
  optimizer.zero_grad();
  fp8_layers = nullptr;
  aux_loss = 0.0;
  double sum = 0.0;
  for (std::int64_t micro_batch = 0; micro_batch < config.accumulation; ++micro_batch) {
    std::optional<Fp8Sampler> health;
    if (micro_batch == 0 && samples_health()) health.emplace(prepared.model);
    const Batch batch = sampler.next(step, micro_batch).to(prepared.device);
    at::Tensor loss = prepared.model->loss(batch.tokens, batch.targets);
    const double value = loss.item<float>();
    if (!std::isfinite(value)) fail_non_finite("loss", value);
    sum += value;
    if (const at::Tensor& aux = prepared.model->aux_loss(); aux.defined()) {
      aux_loss += aux.item<float>() / static_cast<double>(config.accumulation);
      loss = loss + aux;
    }
    if (config.accumulation > 1) loss = loss / static_cast<double>(config.accumulation);
    loss.backward();
    if (health) fp8_layers = health->layers();
  }
  const at::Tensor norm = optimizer.gradient_norm();
  gradient_norm = norm.item<float>();
  if (!std::isfinite(gradient_norm)) fail_non_finite("gradient norm", gradient_norm);
  optimizer.step(schedule.at(step), clip_factor(norm, config.clip_norm));
  nn::invalidate_weight_caches(*prepared.model);
  if (has_experts()) {
    expert_load = largest_expert_load(prepared.model);
    for (nn::Router& router : prepared.model->routers()) router->update_bias();
  }
  ++step;
  return sum / static_cast<double>(config.accumulation);
}

void Trainer::State::save() {
  if (saved_step == step) return;
  check_parameters();
  CheckpointState state;
  state.parameters = module_parameters(*prepared.model);
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

void Trainer::State::record_step(JsonLines& metrics, double loss, double lr,
                                 const std::vector<double>& step_seconds) const {
  const double tokens = static_cast<double>(tokens_per_step());
  nlohmann::json line = {{"event", "train"},
                         {"step", step},
                         {"loss", loss},
                         {"gradient_norm", gradient_norm},
                         {"lr", lr},
                         {"seconds", step_seconds.back()},
                         {"tokens_per_second", tokens / step_seconds.back()},
                         {"memory", memory_of(prepared.device).resident}};
  if (has_experts()) {
    line["aux_loss"] = aux_loss;
    line["expert_load"] = expert_load;
  }
  metrics.write(line);
  if (!fp8_layers.is_null())
    metrics.write({{"event", "fp8"}, {"step", step}, {"layers", fp8_layers}});
  const bool shown = step % std::max<std::int64_t>(config.log_every, 1) == 0;
  if (!log || !(shown || step == config.steps || step_seconds.size() == 1)) return;
  // The pace of the last few steps: the first ones warm up.
  const std::size_t recent = std::min<std::size_t>(step_seconds.size(), 20);
  const double pace =
      median({step_seconds.end() - static_cast<std::ptrdiff_t>(recent), step_seconds.end()});
  say(progress_line({.step = step,
                     .steps = config.steps,
                     .loss = loss,
                     .gradient_norm = gradient_norm,
                     .lr = lr,
                     .tokens_per_second = tokens / pace,
                     .mfu = mfu(tokens / pace),
                     .memory = memory_of(prepared.device),
                     .seconds_left = pace * static_cast<double>(config.steps - step)}));
}

Trainer::Trainer(const TrainConfig& config, const TrainerOptions& options)
    : state_(std::make_unique<State>(config, options)) {
  state_->start_or_resume();
  for (const std::string& line : load_gemm_plans(config, state_->prepared.device))
    state_->resume_lines.push_back(line);
}

Trainer::~Trainer() = default;

std::int64_t Trainer::step() const { return state_->step; }

double Trainer::evaluate(EvalRecipe recipe) {
  const double loss = state_->validate(recipe);
  state_->check_validation(loss);
  return loss;
}

TrainResult Trainer::run() {
  State& s = *state_;
  const TrainConfig& config = s.config;
  const Clock::time_point begin = Clock::now();
  const std::filesystem::path run_dir = config.run_dir;
  const RunLock lock(run_dir);
  StopSignal stop;
  if (config.resume_step > 0) remove_checkpoints_after(run_dir, s.step);

  for (const std::string& line : run_header(config, s.prepared, s.data)) s.say(line);
  for (const std::string& line : s.resume_lines) s.say(line);
  JsonLines metrics(run_dir / "metrics.jsonl",
                    config.resume ? JsonLines::Mode::kAppend : JsonLines::Mode::kTruncate);
  metrics.write({{"event", s.step > 0 ? "resume" : "start"},
                 {"step", s.step},
                 {"recipe", s.prepared.recipe_string()},
                 {"flavour", s.prepared.flavour()},
                 {"fast_accumulation", s.prepared.fast_accumulation()},
                 {"threads", at::get_num_threads()},
                 {"config", nlohmann::json::parse(to_json(config))}});

  TrainResult result;
  std::vector<double> step_seconds;
  const auto record_validation = [&] {
    const double loss = s.validate(s.eval_recipe);
    metrics.write({{"event", "validation"},
                   {"step", s.step},
                   {"loss", loss},
                   {"eval_recipe", config.eval_recipe}});
    std::ostringstream line;
    line << "validation at step " << s.step << ": " << loss << " nats per token";
    s.say(line.str());
    s.check_validation(loss);
    return loss;
  };
  const auto save = [&] {
    if (s.saved_step == s.step) return;
    s.save();
    metrics.write({{"event", "checkpoint"}, {"step", s.step}});
  };

  while (s.step < config.steps && !StopSignal::requested()) {
    const double lr = s.schedule.at(s.step);
    const Clock::time_point step_begin = Clock::now();
    const double loss = s.train_step();
    step_seconds.push_back(seconds_since(step_begin));
    result.losses.push_back(loss);
    s.record_step(metrics, loss, lr, step_seconds);
    const bool last = s.step == config.steps;
    if (config.checkpoint_every > 0 && s.step % config.checkpoint_every == 0 && !last) save();
    if (config.validate_every > 0 && s.step % config.validate_every == 0 && !last) {
      record_validation();
    }
  }
  save();

  result.recipe = s.prepared.recipe_string();
  result.flavour = s.prepared.flavour();
  result.layers_converted = s.prepared.layers_converted();
  result.layers_total = s.prepared.layers_total();
  result.parameters = models::parameter_count(config.model).total();
  result.steps = s.step;
  result.threads = at::get_num_threads();
  result.eval_recipe = config.eval_recipe;
  if (result.losses.empty()) {
    take_step_figures(run_dir / "summary.json", result);
  } else {
    result.train_loss = result.losses.back();
    result.seconds_per_step = seconds_per_step(step_seconds);
    result.tokens_per_second = static_cast<double>(s.tokens_per_step()) / result.seconds_per_step;
  }
  if (s.step < config.steps) {
    result.interrupted = true;
    s.say("stopped after step " + std::to_string(s.step) + " and saved; go on with resume = true");
  } else {
    result.validation_loss = record_validation();
  }
  result.seconds_total = seconds_since(begin);
  result.peak_memory = memory_of(s.prepared.device).peak;
  save_gemm_plans(config, s.prepared.device);  // validation has shapes of its own
  if (!result.interrupted) write_json(run_dir / "summary.json", to_json(result));
  return result;
}

}  // namespace octavo::train
