#include "octavo/train/resume.h"

#include <c10/util/Exception.h>

#include <iterator>

#include "octavo/nn/weight_cache.h"
#include "octavo/train/checkpoint.h"
#include "octavo/train/init.h"
#include "octavo/train/rng.h"
#include "octavo/train/run_header.h"

namespace octavo::train {
namespace {

CheckpointState load_whole(const std::filesystem::path& folder) {
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

// Step 0, whose weights can be another folder's.
Start from_the_beginning(const TrainConfig& config, models::Llama& model, AdamW& optimizer) {
  Start start;
  if (config.init.empty()) return start;
  start.lines.push_back(load_init(config.init, model, optimizer));
  nn::invalidate_weight_caches(*model);
  return start;
}

}  // namespace

Start start_or_resume(const TrainConfig& config, models::Llama& model, AdamW& optimizer) {
  const Checkpoints found = checkpoints_of(config.run_dir);
  if (!config.resume) {
    TORCH_CHECK(found.empty(), "run_dir: '", config.run_dir, "' holds a run already (step ",
                found.rbegin()->first,
                "); go on with it by resume = true, name another run_dir, or remove it");
    return from_the_beginning(config, model, optimizer);
  }
  const auto chosen = config.resume_step > 0 ? found.find(config.resume_step)
                      : found.empty()        ? found.end()
                                             : std::prev(found.end());
  TORCH_CHECK(config.resume_step == 0 || chosen != found.end(),
              "resume_step: no checkpoint of step ", config.resume_step, " in ", config.run_dir,
              "; there are those of ", found.empty() ? "no step" : steps_text(found));
  if (chosen == found.end()) {
    Start start = from_the_beginning(config, model, optimizer);
    start.lines.insert(start.lines.begin(),
                       "resume      no checkpoint in " + config.run_dir + ": starting at step 0");
    return start;
  }
  const CheckpointState state = load_whole(chosen->second);
  Start start{.step = state.step, .from_checkpoint = true, .lines = {}};
  start.lines = resume_differences(state.config, config);
  std::string from = "resume      from " + chosen->second.string();
  if (const auto later = std::next(chosen); later != found.end())
    from += "; removing those of step " + steps_text({later, found.end()});
  start.lines.insert(start.lines.begin(), from);
  load_parameters(*model, state.parameters);
  nn::invalidate_weight_caches(*model);
  optimizer.load_state(state.optimizer);
  set_rng_state(state.rng);
  TORCH_CHECK(start.step <= config.steps, "steps: ", config.steps,
              " asked for, but the checkpoint ", chosen->second.string(), " has done ", start.step,
              "; ask for at least as many");
  return start;
}

}  // namespace octavo::train
