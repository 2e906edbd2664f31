#include "octavo/models/generate.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace octavo::models {
namespace {

void check(const LlamaConfig& config, const at::Tensor& prompt, const GenerateOptions& options) {
  TORCH_CHECK(prompt.dim() == 2 && prompt.scalar_type() == at::kLong && prompt.numel() > 0,
              "generate: the prompt is ", prompt.scalar_type(), " ", prompt.sizes(),
              "; it must be int64 of shape (B, T) with at least one token");
  TORCH_CHECK(options.new_tokens >= 0, "generate: new_tokens is ", options.new_tokens,
              "; it must not be negative");
  TORCH_CHECK(options.temperature >= 0, "generate: temperature is ", options.temperature,
              "; it must be 0 (most likely token) or above");
  TORCH_CHECK(options.top_k >= 0, "generate: top_k is ", options.top_k,
              "; it must be 0 (all tokens) or above");
  TORCH_CHECK(options.context >= 0 && options.context <= config.max_sequence,
              "generate: context is ", options.context,
              "; it must lie between 0 and max_sequence = ", config.max_sequence);
}

}  // namespace

at::Tensor sample(const at::Tensor& logits, const GenerateOptions& options, at::Generator& random) {
  // On the CPU in fp32 whatever the model runs on: the same draws on every device.
  at::Tensor scores = logits.to(at::kCPU, at::kFloat);
  TORCH_CHECK(scores.isfinite().all().item<bool>(),
              "generate: the logits are not finite; the weights are, too, or the model diverged");
  if (options.temperature == 0) return scores.argmax(-1).to(logits.device());
  if (options.top_k > 0 && options.top_k < scores.size(-1)) {
    const at::Tensor kept = std::get<0>(scores.topk(options.top_k, -1));
    const at::Tensor least = kept.narrow(-1, options.top_k - 1, 1);
    scores = scores.masked_fill(scores < least, -std::numeric_limits<float>::infinity());
  }
  // The largest score is moved to zero first: a small temperature would overflow it.
  scores = (scores - scores.amax(-1, /*keepdim=*/true)) / options.temperature;
  return at::multinomial(scores.softmax(-1), 1, /*replacement=*/false, random)
      .squeeze(1)
      .to(logits.device());
}

at::Tensor generate(LlamaImpl& model, const at::Tensor& prompt, const GenerateOptions& options) {
  check(model.config, prompt, options);
  const at::NoGradGuard no_grad;
  at::Generator random = at::detail::createCPUGenerator(options.seed);
  const std::int64_t batch = prompt.size(0), total = prompt.size(1) + options.new_tokens;
  const std::int64_t context =
      std::min(options.context > 0 ? options.context : model.config.max_sequence, total);

  at::Tensor text = at::empty({batch, total}, prompt.options());
  text.narrow(1, 0, prompt.size(1)).copy_(prompt);
  KvCache cache(model.config, batch, context, model.lm_head->weight.options());
  std::int64_t read = std::max<std::int64_t>(prompt.size(1) - context, 0);  // held up to here
  for (std::int64_t written = prompt.size(1); written < total; ++written) {
    if (cache.length() + (written - read) > context) {
      cache.clear();
      read = written - std::max<std::int64_t>(context / 2, 1);
    }
    const at::Tensor logits = model.forward_cached(text.narrow(1, read, written - read), cache);
    read = written;
    const at::Tensor next = sample(logits.select(1, logits.size(1) - 1), options, random);
    text.select(1, written).copy_(next);
    if (options.on_tokens) options.on_tokens(next);
  }
  return text;
}

}  // namespace octavo::models
