#include "octavo/nn/activation_checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/custom_class.h>

#if OCTAVO_WITH_CUDA
#include <c10/cuda/CUDAGraphsC10Utils.h>
#endif

#include <mutex>

namespace octavo::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor generator_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// A GPU's generator cannot be read while a CUDA graph is being captured.
bool is_captured([[maybe_unused]] c10::Device device) {
#if OCTAVO_WITH_CUDA
  return device.is_cuda() &&
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
#else
  return false;
#endif
}

// The random state a block on `device` can draw from: the CPU's, and a GPU's beside it.
struct RandomState {
  c10::Device device;
  at::Tensor cpu, gpu;

  static RandomState current(c10::Device device) {
    const bool gpu = !device.is_cpu() && !is_captured(device);
    return {device, generator_state(at::kCPU), gpu ? generator_state(device) : at::Tensor()};
  }
  void apply() const {
    set_generator_state(at::kCPU, cpu);
    if (gpu.defined()) set_generator_state(device, gpu);
  }
};

struct AutocastState {
  at::DeviceType device;
  bool enabled;
  bool cache_enabled;
  at::ScalarType dtype;

  static AutocastState current(at::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device),
            at::autocast::is_autocast_cache_enabled(), at::autocast::get_autocast_dtype(device)};
  }
  void apply() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_cache_enabled(cache_enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }
};

// Runs a block under a given autocast state, with its cache off.
class AutocastGuard {
 public:
  explicit AutocastGuard(AutocastState state) : before_(AutocastState::current(state.device)) {
    state.cache_enabled = false;
    state.apply();
  }
  ~AutocastGuard() { before_.apply(); }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState before_;
};

class GeneratorGuard {
 public:
  explicit GeneratorGuard(const RandomState& state) : before_(RandomState::current(state.device)) {
    state.apply();
  }
  ~GeneratorGuard() { before_.apply(); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  RandomState before_;
};

using Block = std::function<std::vector<at::Tensor>(const at::Tensor&)>;

// What backward needs besides x to run the block again.
struct Recomputation : torch::CustomClassHolder {
  Block block;
  RandomState random;
  AutocastState autocast;

  Recomputation(Block block, c10::Device device)
      : block(std::move(block)),
        random(RandomState::current(device)),
        autocast(AutocastState::current(device.type())) {}
};

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  // `anchor` requires a gradient, so that backward comes here even where x requires none.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& anchor,
                               const c10::intrusive_ptr<Recomputation>& recomputation) {
    static_cast<void>(anchor);
    ctx->save_for_backward({x});
    ctx->saved_data["recomputation"] = c10::IValue::make_capsule(recomputation);
    const AutocastGuard autocast(recomputation->autocast);
    return recomputation->block(x);  // Function::apply has turned recording off
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    TORCH_CHECK(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
                "checkpoint: gradients of a checkpointed block reach its parameters through "
                "backward() only; call backward() without inputs instead of autograd::grad(), or "
                "switch checkpointing off");
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "checkpoint: second derivatives (create_graph) of a checkpointed block are not "
                "implemented; switch checkpointing off");
    const at::Tensor x = ctx->get_saved_variables()[0];
    const auto recomputation = c10::static_intrusive_pointer_cast<Recomputation>(
        ctx->saved_data["recomputation"].toCapsule());
    at::Tensor input = x.detach();
    input.set_requires_grad(ctx->needs_input_grad(0));
    variable_list results;
    {
      const at::AutoGradMode record(true);
      const AutocastGuard autocast(recomputation->autocast);
      const GeneratorGuard generator(recomputation->random);
      results = recomputation->block(input);
    }
    variable_list roots, root_grads;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].requires_grad()) continue;
      roots.push_back(results[i]);
      root_grads.push_back(grads[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint(Block block, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return block(x);
  auto recomputation = c10::make_intrusive<Recomputation>(std::move(block), x.device());
  const at::Tensor anchor = at::empty({0}).set_requires_grad(true);
  return Checkpoint::apply(x, anchor, recomputation);
}

at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> block, const at::Tensor& x) {
  const Block several = [block = std::move(block)](const at::Tensor& x) {
    return std::vector<at::Tensor>{block(x)};
  };
  return checkpoint(several, x)[0];
}

}  // namespace octavo::nn
