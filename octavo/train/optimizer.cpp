#include "octavo/train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#if OCTAVO_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "octavo/kernels/gpu/adamw.h"
#include "octavo/kernels/gpu/gradient_norm.h"
#include "octavo/quantize/allocate.h"
#include "octavo/quantize/gpu_matrix.h"
#endif

#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_set>

#include "octavo/kernels/cpu/adamw.h"
#include "octavo/kernels/cpu/amax.h"
#include "octavo/quantize/split.h"

namespace octavo::train {

NamedTensors deduplicate(const NamedTensors& named) {
  NamedTensors unique;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& entry : named) {
    if (seen.insert(entry.second.unsafeGetTensorImpl()).second) unique.push_back(entry);
  }
  return unique;
}

namespace {

kernels::HighPrecision element_type(const char* what, const std::string& name,
                                    const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, what, ": ", name,
              ": expected dtype float32 or bfloat16, got ", dtype, "; train in one of them");
  return dtype == at::kFloat ? kernels::HighPrecision::kFloat32 : kernels::HighPrecision::kBFloat16;
}

void check_gradient(const std::string& name, const at::Tensor& parameter,
                    const at::Tensor& gradient) {
  element_type("gradients", name, gradient);
  TORCH_CHECK(gradient.sizes() == parameter.sizes() && gradient.device() == parameter.device(),
              "gradients: ", name, ": expected sizes ", parameter.sizes(), " on ",
              parameter.device(), ", got ", gradient.sizes(), " on ", gradient.device(),
              "; give the parameter's own gradient");
}

// The tensors of one step that one kernel can take.
struct Launch {
  kernels::AdamwTypes types;
  std::vector<kernels::AdamwTensor> tensors;
};

// With tensor.amax, which becomes the parameter's amax, in pieces that are still in cache for it.
void step_on_cpu(const kernels::AdamwTensor& tensor, const kernels::AdamwTypes& types,
                 const kernels::AdamwFactors& factors) {
  constexpr std::int64_t kPiece = 4096;
  std::atomic<float> largest = 0.0f;
  at::parallel_for(0, tensor.size, kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    if (tensor.amax == nullptr) return kernels::adamw(tensor, types, factors, begin, end);
    float amax = 0.0f;
    for (std::int64_t i = begin; i < end; i += kPiece) {
      const std::int64_t piece_end = std::min(i + kPiece, end);
      kernels::adamw(tensor, types, factors, i, piece_end);
      const kernels::ConstMatrix written{
          .data = static_cast<const char*>(tensor.parameter) + i * bytes_of(types.parameter),
          .type = types.parameter,
          .rows = 1,
          .columns = piece_end - i,
          .row_stride = piece_end - i};
      amax = kernels::larger_magnitude(amax, kernels::amax(written, 0, 1, nullptr, nullptr));
    }
    float seen = largest.load();
    while (!largest.compare_exchange_weak(seen, kernels::larger_magnitude(seen, amax))) {
    }
  });
  if (tensor.amax != nullptr) *tensor.amax = largest.load();
}

void run(const Launch& launch, const kernels::AdamwOptions& options, const at::Tensor& lr,
         const at::Tensor& clip) {
#if OCTAVO_WITH_CUDA
  if (lr.is_cuda()) {
    const c10::cuda::CUDAGuard guard(lr.device());
    gpu::adamw({.tensors = launch.tensors.data(),
                .count = static_cast<std::int64_t>(launch.tensors.size()),
                .types = launch.types,
                .options = options,
                .lr = lr.const_data_ptr<double>(),
                .clip = clip.const_data_ptr<float>()},
               c10::cuda::getCurrentCUDAStream(lr.device().index()).stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return;
  }
#endif
  for (const kernels::AdamwTensor& tensor : launch.tensors) {
    const kernels::AdamwFactors factors = kernels::adamw_factors<kernels::HostArithmetic>(
        options, tensor.weight_decay, *lr.const_data_ptr<double>(), *tensor.step,
        *clip.const_data_ptr<float>());
    step_on_cpu(tensor, launch.types, factors);
  }
}

#if OCTAVO_WITH_CUDA
at::Tensor norm_on_gpu(const std::vector<at::Tensor>& gradients) {
  const c10::Device device = gradients[0].device();
  const c10::cuda::CUDAGuard guard(device);
  std::vector<gpu::GradientTensor> tensors;
  for (const at::Tensor& gradient : gradients) {
    tensors.push_back({.data = gradient.const_data_ptr(),
                       .size = gradient.numel(),
                       .dtype = gpu_dtype(gradient)});
  }
  const auto count = static_cast<std::int64_t>(tensors.size());
  const at::Tensor partial =
      empty_on(device, {gpu::gradient_norm_partials(tensors.data(), count)}, at::kDouble);
  at::Tensor norm = empty_on(device, {}, at::kFloat);
  gpu::gradient_norm({.tensors = tensors.data(),
                      .count = count,
                      .partial = partial.mutable_data_ptr<double>(),
                      .norm = norm.mutable_data_ptr<float>()},
                     c10::cuda::getCurrentCUDAStream(device.index()).stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return norm;
}
#endif

}  // namespace

AdamW::Options AdamW::Options::of(const TrainConfig& config) {
  return {.beta1 = config.beta1,
          .beta2 = config.beta2,
          .eps = config.adam_eps,
          .weight_decay = config.weight_decay,
          .master_weights = config.master_weights};
}

AdamW::AdamW(const NamedTensors& parameters, const Options& options) : options_(options) {
  c10::NoGradGuard no_grad;
  for (const auto& entry : deduplicate(parameters)) {
    const auto& [name, parameter] = entry;
    if (!parameter.requires_grad()) continue;
    element_type("parameters", name, parameter);
    TORCH_CHECK(parameter.is_contiguous(), "parameters: ", name,
                ": expected a contiguous tensor, got strides ", parameter.strides(),
                "; replace it by its contiguous()");
    parameters_.push_back(entry);
    TORCH_CHECK(parameter.device() == parameters_[0].second.device(), "parameters: ", name,
                ": expected device ", parameters_[0].second.device(), " as the first, got ",
                parameter.device(), "; move the model to one device");
    Slot slot;
    if (options_.master_weights && parameter.scalar_type() == at::kBFloat16) {
      slot.master = parameter.detach().to(at::kFloat);
    }
    const at::Tensor like = (slot.master.defined() ? slot.master : parameter).detach();
    slot.exp_avg = at::zeros_like(like);
    slot.exp_avg_sq = at::zeros_like(like);
    slot.step = at::zeros({}, parameter.options().dtype(at::kFloat));
    slots_.push_back(slot);
  }
  TORCH_CHECK(!parameters_.empty(),
              "parameters: expected at least one that requires a gradient, got none of ",
              parameters.size(), "; nothing would be trained");
  const at::TensorOptions scalar = parameters_[0].second.options();
  lr_ = at::zeros({}, scalar.dtype(at::kDouble));
  one_ = at::ones({}, scalar.dtype(at::kFloat));
}

void AdamW::set_learning_rate(double lr) { lr_.fill_(lr); }

void AdamW::step(const at::Tensor& given, const nn::WeightAmaxes& amaxes) {
  RECORD_FUNCTION("octavo::adamw", std::vector<c10::IValue>());
  c10::NoGradGuard no_grad;
  const at::Tensor& clip = given.defined() ? given : one_;
  std::vector<at::Tensor> steps, gradients;  // alive until their kernels are queued
  std::vector<at::Tensor> amax_memory;
  std::vector<std::pair<at::Tensor, nn::WeightAmax*>> stepped;
  std::vector<Launch> launches;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    if (!parameter.grad().defined()) continue;
    const Slot& slot = slots_[i];
    gradients.push_back(parameter.grad().contiguous());
    const at::Tensor& gradient = gradients.back();
    check_gradient(name, parameter, gradient);
    const kernels::AdamwTypes types = {.parameter = element_type("parameters", name, parameter),
                                       .gradient = element_type("gradients", name, gradient),
                                       .moments = element_type("state", name, slot.exp_avg),
                                       .has_master = slot.master.defined()};
    auto launch = std::find_if(launches.begin(), launches.end(),
                               [&](const Launch& l) { return l.types == types; });
    if (launch == launches.end())
      launch = launches.insert(launch, Launch{.types = types, .tensors = {}});
    launch->tensors.push_back(
        {.parameter = parameter.mutable_data_ptr(),
         .master = slot.master.defined() ? slot.master.mutable_data_ptr<float>() : nullptr,
         .gradient = gradient.const_data_ptr(),
         .exp_avg = slot.exp_avg.mutable_data_ptr(),
         .exp_avg_sq = slot.exp_avg_sq.mutable_data_ptr(),
         .step = slot.step.const_data_ptr<float>(),
         .size = parameter.numel(),
         .weight_decay = parameter.dim() >= 2 ? options_.weight_decay : 0.0});
    steps.push_back(slot.step);
    const auto wanted = amaxes.find(parameter.unsafeGetTensorImpl());
    stepped.emplace_back(parameter, wanted == amaxes.end() ? nullptr : wanted->second);
    if (nn::WeightAmax* const amax = stepped.back().second) {
      amax_memory.push_back(amax->memory(parameter));
      launch->tensors.back().amax = amax_memory.back().mutable_data_ptr<float>();
    }
  }
  if (steps.empty()) return;
  at::_foreach_add_(steps, clip.eq(clip).to(at::kFloat));     // 0 where it is NaN
  if (!amax_memory.empty()) at::_foreach_zero_(amax_memory);  // maxima begin there
  const kernels::AdamwOptions options{
      .beta1 = options_.beta1, .beta2 = options_.beta2, .eps = options_.eps};
  for (const Launch& launch : launches) run(launch, options, lr_, clip);
  for (auto& [parameter, amax] : stepped) {
    parameter.unsafeGetTensorImpl()->bump_version();
    if (amax != nullptr) amax->found(parameter);
  }
}

void AdamW::zero_grad() {
  for (auto& entry : parameters_) entry.second.mutable_grad().reset();
}

at::Tensor AdamW::gradient_norm() const {
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad().contiguous());
    check_gradient(name, parameter, gradients.back());
  }
  if (gradients.empty()) return at::zeros_like(one_);
#if OCTAVO_WITH_CUDA
  if (one_.is_cuda()) return norm_on_gpu(gradients);
#endif
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2, at::kFloat)));
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  if (max_norm == 0.0) return at::ones_like(norm, norm.options().dtype(at::kFloat));
  // In fp64, so that the one rounding is that of the factor.
  return norm.to(at::kDouble)
      .add_(1e-6)
      .reciprocal_()
      .mul_(max_norm)
      .clamp_max_(1.0)
      .to(at::kFloat);
}

NamedTensors AdamW::state() const {
  NamedTensors state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].first;
    state.emplace_back(name + ".exp_avg", slots_[i].exp_avg);
    state.emplace_back(name + ".exp_avg_sq", slots_[i].exp_avg_sq);
    state.emplace_back(name + ".step", slots_[i].step);
    if (slots_[i].master.defined()) state.emplace_back(name + ".master", slots_[i].master);
  }
  return state;
}

void AdamW::load_state(const NamedTensors& state) {
  c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> missing;
  for (const auto& [name, tensor] : this->state()) missing[name] = tensor;
  // Everything is checked before anything is written.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, tensor] : state) {
    const auto found = missing.find(name);
    TORCH_CHECK(found != missing.end(), "state: '", name,
                "' belongs to no parameter of this model or "
                "comes twice; the checkpoint is another model's");
    const at::Tensor& live = found->second;
    TORCH_CHECK(tensor.sizes() == live.sizes() && tensor.scalar_type() == live.scalar_type(),
                "state: '", name, "' should be ", live.scalar_type(), " ", live.sizes(), ", got ",
                tensor.scalar_type(), " ", tensor.sizes(),
                "; use the configuration the checkpoint was made with");
    copies.emplace_back(live, tensor);
    missing.erase(found);
  }
  TORCH_CHECK(missing.empty(), "state: '", missing.begin()->first,
              "' is missing; the checkpoint is another model's or incomplete");
  for (auto& [live, tensor] : copies) live.copy_(tensor);
}

}  // namespace octavo::train
