#include "octavo/nn/embedding.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#if OCTAVO_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "octavo/kernels/gpu/embedding_gradient.h"
#include "octavo/nn/owned_gradient.h"
#endif

namespace octavo::nn {

#if OCTAVO_WITH_CUDA
namespace {

// The lookup whose backward adds to weight.grad() itself.
class EmbeddingInPlace : public torch::autograd::Function<EmbeddingInPlace> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& tokens) {
    context->save_for_backward({tokens});
    context->saved_data["weight"] = weight;
    return at::embedding(weight, tokens);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    const at::Tensor tokens = context->get_saved_variables()[0].flatten();
    const at::Tensor dy = gradients[0].contiguous();
    const c10::cuda::CUDAGuard guard(weight.device());
    if (!weight.grad().defined()) weight.mutable_grad() = at::zeros_like(weight.detach());
    const auto [sorted, order] = at::sort(tokens, /*stable=*/std::optional<bool>(true), 0, false);
    gpu::add_embedding_gradient(
        {.sorted = sorted.const_data_ptr<std::int64_t>(),
         .order = order.const_data_ptr<std::int64_t>(),
         .tokens = tokens.numel(),
         .features = weight.size(1),
         .dtype = weight.scalar_type() == at::kFloat ? gpu::DType::kFP32 : gpu::DType::kBF16,
         .dy = dy.const_data_ptr(),
         .gradient = weight.grad().mutable_data_ptr()},
        c10::cuda::getCurrentCUDAStream(weight.device().index()).stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace
#endif

EmbeddingImpl::EmbeddingImpl(const EmbeddingOptions& options) : options(options) { reset(); }

void EmbeddingImpl::reset() {
  TORCH_CHECK(options.vocabulary >= 1 && options.features >= 1,
              "Embedding: expected vocabulary and features of at least 1, got ", options.vocabulary,
              " and ", options.features, "; give the sizes of the model");
  weight = register_parameter("weight",
                              torch::empty({options.vocabulary, options.features}, options.tensor));
  torch::NoGradGuard no_grad;
  if (options.initialise) weight.normal_();
}

void EmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "octavo::nn::Embedding(" << options.vocabulary << ", " << options.features << ")";
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& tokens) {
#if OCTAVO_WITH_CUDA
  if (gradient_in_place && owns_gradient(weight) && weight.is_cuda()) {
    return EmbeddingInPlace::apply(weight, tokens);
  }
#endif
  return at::embedding(weight, tokens);
}

}  // namespace octavo::nn
