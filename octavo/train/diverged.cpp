#include "octavo/train/diverged.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <sstream>

#include "octavo/train/checkpoint.h"

namespace octavo::train {
namespace {

std::string way_on(const TrainConfig& config) {
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

}  // namespace

void check_finite(const StepFigures& figures, const TrainConfig& config, std::int64_t step) {
  const auto check = [&](const char* what, double value) {
    TORCH_CHECK(std::isfinite(value), what, ": ", value, " at step ", step,
                "; the parameters were not changed by this step", way_on(config));
  };
  check("loss", figures.loss);
  check("gradient norm", figures.gradient_norm);
}

void check_finite(const NamedTensors& parameters, const TrainConfig& config, std::int64_t step) {
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const auto& named : parameters) tensors.push_back(named.second);
  const double norm =
      at::linalg_vector_norm(at::stack(at::_foreach_norm(tensors, 2, at::kFloat))).item<float>();
  TORCH_CHECK(std::isfinite(norm), "parameters: their norm is ", norm, " after step ", step,
              "; the training diverged and this step is not saved", way_on(config));
}

void check_validation_loss(double loss, const TrainConfig& config, std::int64_t step) {
  TORCH_CHECK(std::isfinite(loss), "validation loss: ", loss, " after step ", step,
              "; the training diverged", way_on(config));
}

}  // namespace octavo::train
