#include "octavo/models/generate.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <vector>

namespace octavo::models {
namespace {

LlamaConfig tiny() {
  return {.vocabulary = 23,
          .dim = 32,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .hidden = 48,
          .max_sequence = 32};
}

// Weights ten times the usual: logits far enough apart for the most likely token to be a clear one.
Llama loud_model() {
  torch::manual_seed(5);
  Llama model(tiny());
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() == 2) parameter.mul_(10);
  }
  return model;
}

at::Tensor some_prompt(std::int64_t batch, std::int64_t length) {
  torch::manual_seed(6);
  return torch::randint(tiny().vocabulary, {batch, length}, at::kLong);
}

TEST(Generate, CachedForwardEqualsTheWholeForward) {
  const torch::NoGradGuard no_grad;
  Llama model = loud_model();
  const at::Tensor tokens = some_prompt(3, 32);
  const at::Tensor whole = model(tokens);
  for (const std::vector<std::int64_t>& chunks :
       {std::vector<std::int64_t>{32}, {31, 1}, {5, 1, 1, 3, 22}, {1, 15, 16}}) {
    KvCache cache(tiny(), 3, 32, whole.options());
    std::int64_t begin = 0;
    for (const std::int64_t length : chunks) {
      const at::Tensor part = model->forward_cached(tokens.narrow(1, begin, length), cache);
      const at::Tensor expected = whole.narrow(1, begin, length);
      // The same sums in another order: some tens of fp32 roundings.
      const double error = ((part - expected).norm() / expected.norm()).item<double>();
      EXPECT_TRUE(error <= 3e-6) << "positions from " << begin << ": " << error;
      begin += length;
      EXPECT_EQ(cache.length(), begin);
    }
    EXPECT_THROW(model->forward_cached(tokens.narrow(1, 0, 1), cache), c10::Error);
  }
}

// The rule of GenerateOptions::context written with whole forwards.
std::vector<std::int64_t> greedy_reference(Llama& model, std::vector<std::int64_t> text,
                                           std::int64_t new_tokens, std::int64_t context) {
  const torch::NoGradGuard no_grad;
  std::int64_t begin = std::max<std::int64_t>(std::int64_t(text.size()) - context, 0);
  for (std::int64_t i = 0; i < new_tokens; ++i) {
    const auto size = std::int64_t(text.size());
    if (size - begin > context) begin = size - std::max<std::int64_t>(context / 2, 1);
    const std::vector<std::int64_t> seen(text.begin() + begin, text.end());
    const at::Tensor logits = model(at::tensor(seen, at::kLong).unsqueeze(0));
    text.push_back(logits[0][-1].argmax().item<std::int64_t>());
  }
  return text;
}

TEST(Generate, GreedyIsTheMostLikelyTokenAtEachStep) {
  Llama model = loud_model();
  for (const std::int64_t context : {0, 1, 2, 7, 32}) {
    for (const std::int64_t prompt_length : {1, 9, 20}) {
      const at::Tensor prompt = some_prompt(1, prompt_length);
      const std::int64_t new_tokens = context == 0 ? 32 - prompt_length : 40;
      const at::Tensor text = generate(
          *model, prompt, {.new_tokens = new_tokens, .temperature = 0, .context = context});
      const std::vector<std::int64_t> given(prompt.data_ptr<std::int64_t>(),
                                            prompt.data_ptr<std::int64_t>() + prompt_length);
      const auto expected = greedy_reference(model, given, new_tokens, context == 0 ? 32 : context);
      EXPECT_TRUE(at::equal(text, at::tensor(expected, at::kLong).unsqueeze(0)))
          << context << " " << prompt_length;
    }
  }
}

TEST(Generate, EveryPromptOfABatchIsContinuedByItself) {
  Llama model = loud_model();
  const at::Tensor prompts = some_prompt(3, 6);
  const GenerateOptions options{.new_tokens = 12, .temperature = 0};
  const at::Tensor together = generate(*model, prompts, options);
  for (std::int64_t b = 0; b < 3; ++b) {
    EXPECT_TRUE(
        at::equal(together.narrow(0, b, 1), generate(*model, prompts.narrow(0, b, 1), options)));
  }
}

TEST(Generate, TheSeedDecidesAndTheGlobalStateStays) {
  Llama model = loud_model();
  const at::Tensor prompt = some_prompt(1, 4);
  torch::manual_seed(11);
  const at::Tensor untouched = torch::rand({3});
  torch::manual_seed(11);
  const at::Tensor a = generate(*model, prompt, {.new_tokens = 28, .temperature = 2, .seed = 1});
  EXPECT_TRUE(at::equal(torch::rand({3}), untouched));
  const at::Tensor b = generate(*model, prompt, {.new_tokens = 28, .temperature = 2, .seed = 1});
  const at::Tensor c = generate(*model, prompt, {.new_tokens = 28, .temperature = 2, .seed = 2});
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_FALSE(at::equal(a, c));
  EXPECT_TRUE(at::equal(a.narrow(1, 0, 4), prompt));
}

TEST(Generate, ColdSamplingAndTopOneAreGreedy) {
  Llama model = loud_model();
  const at::Tensor prompt = some_prompt(1, 4);
  const at::Tensor greedy = generate(*model, prompt, {.new_tokens = 20, .temperature = 0});
  EXPECT_TRUE(
      at::equal(generate(*model, prompt, {.new_tokens = 20, .temperature = 1e-30}), greedy));
  EXPECT_TRUE(at::equal(generate(*model, prompt, {.new_tokens = 20, .temperature = 3, .top_k = 1}),
                        greedy));
}

TEST(Generate, SamplesFollowTheProbabilities) {
  const std::int64_t draws = 20000;
  const std::vector<float> row = {0.0f, 1.0f, 2.0f, -1.0f, 1.0f};
  const at::Tensor logits = at::tensor(row).expand({draws, 5});
  struct Case {
    double temperature;
    std::int64_t top_k;
    std::vector<int> allowed;
  };
  // The second largest logit is there twice: both stay among the top 2.
  for (const Case& c :
       {Case{1.0, 0, {0, 1, 2, 3, 4}}, Case{0.5, 2, {1, 2, 4}}, Case{2.0, 9, {0, 1, 2, 3, 4}}}) {
    at::Generator random = at::detail::createCPUGenerator(17);
    const at::Tensor got = sample(logits, {.temperature = c.temperature, .top_k = c.top_k}, random);
    const at::Tensor counts = at::bincount(got, {}, 5);
    double total = 0;
    for (const int v : c.allowed) total += std::exp(row[v] / c.temperature);
    for (int v = 0; v < 5; ++v) {
      const bool allowed = std::find(c.allowed.begin(), c.allowed.end(), v) != c.allowed.end();
      const double p = allowed ? std::exp(row[v] / c.temperature) / total : 0;
      const double got_p = counts[v].item<double>() / double(draws);
      // Five deviations of a binomial share.
      EXPECT_TRUE(std::abs(got_p - p) <= 5 * std::sqrt(p * (1 - p) / double(draws)))
          << v << ": " << got_p << " for " << p;
    }
  }
}

TEST(Generate, TokensAreHandedOutAsTheyCome) {
  Llama model = loud_model();
  const at::Tensor prompt = some_prompt(2, 3);
  std::vector<at::Tensor> seen;
  const at::Tensor text = generate(
      *model, prompt,
      {.new_tokens = 5, .seed = 3, .on_tokens = [&](const at::Tensor& t) { seen.push_back(t); }});
  ASSERT_EQ(seen.size(), 5u);
  EXPECT_TRUE(at::equal(at::stack(seen, 1), text.narrow(1, 3, 5)));
  EXPECT_TRUE(at::equal(generate(*model, prompt, {.new_tokens = 0}), prompt));
}

TEST(Generate, BadInputIsAnError) {
  Llama model = loud_model();
  const at::Tensor prompt = some_prompt(1, 3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(generate(*model, prompt.narrow(1, 0, 0), {}), c10::Error);
  EXPECT_THROW(generate(*model, prompt.to(at::kInt), {}), c10::Error);
  EXPECT_THROW(generate(*model, prompt, {.new_tokens = -1}), c10::Error);
  EXPECT_THROW(generate(*model, prompt, {.temperature = -0.5}), c10::Error);
  EXPECT_THROW(generate(*model, prompt, {.temperature = nan}), c10::Error);
  EXPECT_THROW(generate(*model, prompt, {.top_k = -1}), c10::Error);
  EXPECT_THROW(generate(*model, prompt, {.context = 33}), c10::Error);
  const torch::NoGradGuard no_grad;
  model->lm_head->weight.fill_(nan);
  EXPECT_THROW(generate(*model, prompt, {.temperature = 0}), c10::Error);
}

}  // namespace
}  // namespace octavo::models
