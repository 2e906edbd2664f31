#include "apps/octavo/bench_step.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "apps/octavo/bench_rates.h"
#include "apps/octavo/bench_report.h"
#include "apps/octavo/step_profile.h"
#include "apps/octavo/step_work.h"
#include "octavo/models/llama_accounting.h"
#include "octavo/nn/fusion.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/gemm_plans.h"
#include "octavo/train/metrics.h"
#include "octavo/train/optimizer.h"
#include "octavo/train/prepare.h"
#include "octavo/train/train_step.h"

namespace octavo::app {
namespace {

using nlohmann::ordered_json;

// Points in time on a device's stream, or on the host's clock for the CPU.
class Marks {
 public:
  explicit Marks(c10::Device device) : device_(device) {}
  void mark() {
    if (device_.is_cpu()) {
      host_.push_back(std::chrono::steady_clock::now());
      return;
    }
    const c10::impl::VirtualGuardImpl guard(device_.type());
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_.back().record(guard.getStream(device_));
  }
  // Seconds between neighbouring marks; waits for the last one.
  std::vector<double> seconds() const {
    std::vector<double> out;
    if (!events_.empty()) events_.back().synchronize();
    for (std::size_t i = 1; i < events_.size(); ++i)
      out.push_back(events_[i - 1].elapsedTime(events_[i]) * 1e-3);
    for (std::size_t i = 1; i < host_.size(); ++i)
      out.push_back(std::chrono::duration<double>(host_[i] - host_[i - 1]).count());
    return out;
  }

 private:
  c10::Device device_;
  std::vector<c10::Event> events_;
  std::vector<std::chrono::steady_clock::time_point> host_;
};

struct StepContender {
  std::string name;
  std::optional<Recipe> recipe = {};
  bool fusion = true;
  std::vector<double> seconds = {};
  std::int64_t peak = 0;
  StepWork work = {};
  std::optional<StepProfile> profile = {};
  std::string skipped = {};
};

std::vector<StepContender> contenders_of(const BenchStepOptions& options,
                                         const train::TrainConfig& config) {
  std::vector<StepContender> contenders = {{.name = "high_precision"}};
  const std::string words =
      options.recipes.empty() ? "tensorwise,rowwise,rowwise_with_gw_hp" : options.recipes;
  for (const std::string& word : split_recipes(words)) {
    train::TrainConfig with = config;
    with.recipe = word;
    if (word == "high_precision") continue;
    const Recipe recipe = *train::training_recipe(with);
    contenders.push_back({.name = word, .recipe = recipe, .fusion = config.fusion});
    if (options.unfused)
      contenders.push_back({.name = word + ", unfused", .recipe = recipe, .fusion = false});
  }
  return contenders;
}

// Seconds of a step outside of products and attention.
double surrounding_seconds(const StepProfile& profile) {
  const auto share = profile.share();
  return profile.seconds *
         (share[std::size_t(StepKind::kQuantisation)] + share[std::size_t(StepKind::kProducers)] +
          share[std::size_t(StepKind::kOptimiser)] + share[std::size_t(StepKind::kRest)]);
}

// bench_step()'s share of the overhead; n/a where an FP8 linear is one entry of the profile.
ordered_json recovered(const StepContender& fused, const StepContender& unfused,
                       const StepContender& high_precision, c10::Device device) {
  if (device.is_cpu() || !fused.profile || !unfused.profile || !high_precision.profile) return {};
  const double base = surrounding_seconds(*high_precision.profile);
  return 1.0 - (surrounding_seconds(*fused.profile) - base) /
                   (surrounding_seconds(*unfused.profile) - base);
}

void set_recipe(models::Llama& model, const train::TrainConfig& config,
                const std::optional<Recipe>& recipe) {
  for (const nn::NamedFloat8Layer& named : nn::float8_layers(*model)) named.layer->recipe.reset();
  if (!recipe) return;
  nn::ConvertOptions convert{.recipe = *recipe};
  convert.filter_fqns = config.filter_fqns;
  convert.select_fqns = config.select_fqns;
  convert.allow_unmatched = config.allow_unmatched_filters;
  nn::convert_to_float8_training(*model, convert);
}

// What steps take in turn.
std::vector<train::MicroBatches> random_batches(const train::TrainConfig& config) {
  std::vector<train::MicroBatches> batches;
  for (int i = 0; i < 4; ++i) {
    const at::Tensor windows =
        at::randint(config.model.vocabulary,
                    {config.accumulation, config.batch, config.sequence + 1}, at::kLong);
    batches.push_back(
        train::MicroBatches::of({windows.narrow(2, 0, config.sequence).contiguous(),
                                 windows.narrow(2, 1, config.sequence).contiguous()}));
  }
  return batches;
}

train::TrainConfig step_config(const BenchStepOptions& options) {
  const auto given = [&](const char* key) -> const train::ConfigSetting* {
    for (const train::ConfigSetting& setting : options.config.settings)
      if (setting.key == key) return &setting;
    return nullptr;
  };
  const train::ConfigSetting* device = given("device");
  const bool cpu = device == nullptr || device->json == "\"cpu\"";
  std::vector<train::ConfigSetting> base;
  const auto set = [&](const char* key, const char* value) {
    base.push_back(train::setting_from_text(key, value, "the benchmark's defaults"));
  };
  set("dtype", "bfloat16");
  set("batch", cpu ? "2" : "1");
  set("sequence", cpu ? "128" : "8192");
  set("lr", "1e-5");
  if (!cpu && !options.config.file && given("preset") == nullptr) {
    set("preset", "llama3-8b");
    if (given("layers") == nullptr) set("layers", "8");
  }
  return options.config.make(base);
}

ordered_json kernels_json(const StepProfile& profile) {
  ordered_json out = ordered_json::array();
  for (const KernelTime& kernel : profile.kernels) {
    out.push_back({{"kind", name(kind_of(kernel.name))},
                   {"launches", kernel.launches},
                   {"milliseconds", kernel.seconds * 1e3},
                   {"name", kernel.name}});
  }
  return out;
}

}  // namespace

void bench_step(const BenchStepOptions& options) {
  const train::TrainConfig config = step_config(options);
  std::vector<StepContender> contenders = contenders_of(options, config);
  train::PreparedModel prepared = train::prepare_model(config);
  const c10::Device device = prepared.device;
  train::load_gemm_plans(config, device);

  std::vector<BenchColumn> columns = {{"recipe", "recipe", 20, BenchColumn::kText},
                                      {"ms", "milliseconds", 9, 2},
                                      {"tok/s", "tokens_per_second", 9, 0},
                                      {"ratio", "high_precision_ratio", 6, 3},
                                      {"peak GiB", "peak_gib", 8, 2},
                                      {"floor ms", "floor_milliseconds", 9, 2},
                                      {"of floor", "of_floor", 8, 3},
                                      {"MFU bf16", "mfu_bf16_peak", 8, 3},
                                      {"mixed", "mfu_mixed_peak", 6, 3}};
  if (options.breakdown) {
    for (int kind = 0; kind < kStepKinds; ++kind)
      columns.push_back({name(StepKind(kind)), name(StepKind(kind)), 12, 3});
    columns.push_back({"idle", "idle", 6, 3});
    columns.push_back({"launches", "launches", 8, 0});
    if (options.unfused) columns.push_back({"recovered", "overhead_recovered", 9, 3});
  }
  BenchOptions head;
  head.device = config.device;
  head.repetitions = options.rounds * options.steps;
  head.json = options.json;
  BenchReport report("step", head, device, columns);
  const std::int64_t tokens = config.batch * config.sequence * config.accumulation;
  const models::ParameterCount parameters = models::parameter_count(config.model);
  report.fact("model", ordered_json{{"preset", config.preset},
                                    {"layers", config.model.layers},
                                    {"parameters", parameters.total()},
                                    {"active_parameters", parameters.active()}});
  report.fact("tokens_per_step", tokens);
  report.fact("config", ordered_json::parse(train::to_json(config)));
  report.line(config.preset + ", " + std::to_string(config.model.layers) + " layers, " +
              train::with_commas(parameters.total()) + " parameters, " + config.dtype + ", " +
              std::to_string(config.batch) + " x " + std::to_string(config.sequence) + " x " +
              std::to_string(config.accumulation) + " tokens a step" +
              (config.cuda_graph ? ", CUDA graph" : "") +
              (config.activation_checkpointing != models::ActivationCheckpointing::kNone
                   ? ", activation checkpointing"
                   : ""));
  const MachineRates rates = measure_rates(device, 5, RatesOf::kCopyAndProducts);
  report.fact("rates", rates.json());
  report.line(rates.text());
  const std::optional<PeakRates> peak = peak_rates(product_name(device));
  report.line(
      "MFU bf16: all operations at the dense BF16 peak; mixed: FP8 products at the FP8 peak" +
      (peak ? " (" + fixed(peak->bf16 * 1e-12, 0) + " and " +
                  fixed(peak->fp8.value_or(peak->bf16) * 1e-12, 0) + " TFLOP/s)"
            : std::string(": n/a, the device's peaks are not known")));

  if (config.weight_cache) nn::enable_weight_caches(*prepared.model);
  train::AdamW optimizer(train::module_parameters(*prepared.model),
                         train::AdamW::Options::of(config));
  const std::vector<train::MicroBatches> batches = random_batches(config);
  std::size_t next = 0;

  // `timed` steps after `warm` others; the last figures must be numbers.
  const auto run = [&](StepContender& contender, int warm, int timed, bool profiles) {
    set_recipe(prepared.model, config, contender.recipe);
    nn::set_fusion(*prepared.model, contender.fusion);
    optimizer.zero_grad();
    train::release_unused_memory(device);
    train::TrainStep step(prepared.model, optimizer, train::TrainStep::Options::of(config));
    at::Tensor figures;
    const auto once = [&] { figures = *step.run(batches[next++ % batches.size()], config.lr); };
    if (config.cuda_graph) warm += train::GraphedWork::kEagerRuns + 1;
    for (int i = 0; i < warm; ++i) once();
    Marks marks(device);
    marks.mark();
    for (int i = 0; i < timed; ++i) {
      once();
      marks.mark();
    }
    for (const double seconds : marks.seconds()) contender.seconds.push_back(seconds);
    contender.peak = std::max(contender.peak, train::memory_of(device).peak);
    contender.work = step_work(config, *prepared.model, prepared.architecture);
    if (profiles) contender.profile = profile_step(device, once);
    const train::StepFigures read = train::StepFigures::read(figures);
    TORCH_CHECK(std::isfinite(read.loss) && std::isfinite(read.gradient_norm), "loss ", read.loss,
                ", gradient norm ", read.gradient_norm, ": not numbers; lower --lr");
    optimizer.zero_grad();
  };
  for (int round = 0; round < options.rounds; ++round) {
    for (StepContender& contender : contenders) {
      if (!contender.skipped.empty()) continue;
      try {
        run(contender, options.warm_up + (round == 0 ? 1 : 0), options.steps,
            options.breakdown && round + 1 == options.rounds);
      } catch (const c10::OutOfMemoryError&) {
        contender.skipped = "out of memory: fewer layers or tokens, or activation_checkpointing";
        optimizer.zero_grad();
      } catch (const c10::Error& error) {
        contender.skipped = error.what_without_backtrace();
      }
    }
  }

  const double base = train::median(contenders[0].seconds);
  ordered_json kernels;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const StepContender& contender = contenders[i];
    if (!contender.skipped.empty()) {
      report.skipped({contender.name}, contender.skipped);
      continue;
    }
    const double seconds = train::median(contender.seconds);
    const double floor = contender.work.floor_seconds(rates);
    const auto known = [&](double value) { return peak ? ordered_json(value) : ordered_json(); };
    std::vector<ordered_json> cells = {
        contender.name,
        seconds * 1e3,
        static_cast<double>(tokens) / seconds,
        contenders[0].seconds.empty() ? ordered_json() : ordered_json(base / seconds),
        static_cast<double>(contender.peak) / (1 << 30),
        floor * 1e3,
        floor / seconds,
        known(peak ? contender.work.mfu(*peak, seconds) : 0),
        known(peak ? contender.work.mixed_mfu(*peak, seconds) : 0)};
    if (contender.profile) {
      for (const double share : contender.profile->share()) cells.push_back(share);
      cells.push_back(contender.profile->idle());
      cells.push_back(contender.profile->launches());
      if (options.unfused) {
        // contenders_of() puts its unfused twin after each that fuses.
        cells.push_back(contender.recipe && contender.fusion
                            ? recovered(contender, contenders[i + 1], contenders[0], device)
                            : ordered_json());
      }
      kernels[contender.name] = kernels_json(*contender.profile);
    }
    report.row(cells);
  }
  if (options.breakdown) report.fact("kernels", kernels);
  report.finish();
}

}  // namespace octavo::app
