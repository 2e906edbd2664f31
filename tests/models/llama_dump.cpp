// Run by test_llama_parity.py and test_moe_parity.py: loads weights and batches, writes what the
// model makes of them.
//
//   test_models --llama-dump INPUT OUTPUT
//
// Both files hold a dictionary of tensors as torch.save writes it.
//   INPUT   config.<field> (0-d; with experts those of MoeConfig too, enums by number),
//           weights.<parameter>, tokens and targets (steps, B, T), lr, betas, eps, weight_decay
//           (AdamW)
//   OUTPUT  logits and loss of the first batch, gradients.<parameter>, losses and aux_losses (one
//           for each step, before it), final.<parameter>

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/serialize.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "octavo/models/llama.h"
#include "octavo/nn/parameters.h"

namespace {

using octavo::models::LlamaConfig;
using Tensors = std::map<std::string, at::Tensor>;

Tensors load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  Tensors tensors;
  for (const auto& item : torch::pickle_load(bytes).toGenericDict()) {
    tensors[item.key().toStringRef()] = item.value().toTensor();
  }
  return tensors;
}

void save(const std::string& path, const Tensors& tensors) {
  c10::Dict<std::string, at::Tensor> dictionary;
  for (const auto& [name, tensor] : tensors) dictionary.insert(name, tensor.detach().contiguous());
  const std::vector<char> bytes = torch::pickle_save(dictionary);
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

LlamaConfig read_config(const Tensors& input) {
  const auto whole = [&](const char* name) { return input.at(name).item<std::int64_t>(); };
  LlamaConfig config = {.vocabulary = whole("config.vocabulary"),
                        .dim = whole("config.dim"),
                        .layers = whole("config.layers"),
                        .heads = whole("config.heads"),
                        .kv_heads = whole("config.kv_heads"),
                        .hidden = whole("config.hidden"),
                        .max_sequence = whole("config.max_sequence"),
                        .rope_theta = input.at("config.rope_theta").item<double>(),
                        .norm_eps = input.at("config.norm_eps").item<double>(),
                        .tied_head = whole("config.tied_head") != 0};
  if (input.count("config.head_dim") != 0) {
    config.head_size = whole("config.head_dim");
    config.attention_bias = whole("config.attention_bias") != 0;
    config.qk_norm = whole("config.qk_norm") != 0;
    config.rope_scaling = {
        .stretch = octavo::models::RopeStretch(whole("config.rope_scaling")),
        .factor = input.at("config.rope_factor").item<double>(),
        .low_frequency_factor = input.at("config.rope_low_frequency").item<double>(),
        .high_frequency_factor = input.at("config.rope_high_frequency").item<double>(),
        .original_sequence = whole("config.rope_original_sequence")};
  }
  if (input.count("config.experts") == 0) return config;
  config.moe = {.experts = whole("config.experts"),
                .top_k = whole("config.top_k"),
                .hidden = whole("config.expert_hidden"),
                .shared_hidden = whole("config.shared_hidden"),
                .every = whole("config.moe_every"),
                .dense_first = whole("config.dense_first"),
                .score = octavo::nn::RouterScore(whole("config.sigmoid")),
                .normalise = whole("config.normalise_weights") != 0,
                .scale = input.at("config.routed_scale").item<double>(),
                .weight_on = octavo::models::WeightOn(whole("config.weight_on_input")),
                .balance = octavo::nn::LoadBalance(whole("config.balance")),
                .balance_rate = input.at("config.balance_rate").item<double>()};
  return config;
}

void run(const Tensors& input, Tensors& output) {
  octavo::models::Llama model(read_config(input));
  const auto parameters = octavo::nn::unique_parameters(*model);
  {
    const torch::NoGradGuard no_grad;
    std::size_t given = 0;
    for (const auto& item : input) given += item.first.rfind("weights.", 0) == 0;
    TORCH_CHECK(given == parameters.size(), given, " weights for ", parameters.size(),
                " parameters");
    for (const auto& [name, tensor] : parameters) {
      const at::Tensor& weight = input.at("weights." + name);
      TORCH_CHECK(weight.sizes() == tensor.sizes(), name, " has another shape");
      tensor.copy_(weight);
    }
  }

  const auto number = [&](const char* name) { return input.at(name).item<double>(); };
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters) {
    if (parameter.tensor.requires_grad()) tensors.push_back(parameter.tensor);
  }
  torch::optim::AdamW optimizer(tensors, torch::optim::AdamWOptions(number("lr"))
                                             .betas({input.at("betas")[0].item<double>(),
                                                     input.at("betas")[1].item<double>()})
                                             .eps(number("eps"))
                                             .weight_decay(number("weight_decay")));

  const at::Tensor &tokens = input.at("tokens"), &targets = input.at("targets");
  {
    const torch::NoGradGuard no_grad;
    output["logits"] = model->forward(tokens[0]);
  }
  std::vector<at::Tensor> losses, aux_losses;
  for (std::int64_t step = 0; step < tokens.size(0); ++step) {
    const at::Tensor loss = model->loss(tokens[step], targets[step]);
    const at::Tensor aux = model->aux_loss();
    optimizer.zero_grad();
    (aux.defined() ? loss + aux : loss).backward();
    losses.push_back(loss.detach());
    if (aux.defined()) aux_losses.push_back(aux.detach());
    if (step == 0) {
      for (const auto& [name, tensor] : parameters) {
        if (tensor.requires_grad()) output["gradients." + name] = tensor.grad().clone();
      }
    }
    optimizer.step();
    for (octavo::nn::Router& router : model->routers()) router->update_bias();
  }
  output["losses"] = at::stack(losses);
  if (!aux_losses.empty()) output["aux_losses"] = at::stack(aux_losses);
  for (const auto& [name, tensor] : parameters) output["final." + name] = tensor;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 4 && std::string(argv[1]) == "--llama-dump") {
    Tensors output;
    run(load(argv[2]), output);
    save(argv[3], output);
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
