#include "apps/octavo/step_work.h"

#include "octavo/models/llama_accounting.h"
#include "octavo/nn/experts.h"
#include "octavo/nn/parameters.h"

namespace octavo::app {
namespace {

int count(const std::optional<LayoutSpec>& a, const std::optional<LayoutSpec>& b) {
  return (a ? 1 : 0) + (b ? 1 : 0);
}

// k and v read q's input, up reads gate's.
bool shares_its_input(const std::string& fqn) {
  return fqn.ends_with("k_proj") || fqn.ends_with("v_proj") || fqn.ends_with("up_proj");
}

// One converted product of `rows` tokens with `weights` elements of K x N in all, of which a token
// meets k x n.
void add_layer(StepWork& work, const LinearSpec& spec, double rows, double k, double n,
               double weights, double weight_passes, double element, bool reads_input) {
  for (const ProductSpec* product : {&spec.forward, &spec.dx, &spec.dw}) {
    if (!product->high_precision()) work.fp8_operations += 2.0 * rows * k * n;
  }
  const auto pass = [&](double elements, int layouts) {
    if (layouts > 0) work.bytes += elements * (element + layouts);
  };
  if (reads_input) pass(rows * k, count(spec.forward.a, spec.dw.b));
  pass(weights * weight_passes, count(spec.forward.b, spec.dx.b));
  pass(rows * n, count(spec.dx.a, spec.dw.a));
}

}  // namespace

StepWork step_work(const train::TrainConfig& config, const models::LlamaImpl& model,
                   const Architecture& architecture) {
  const double tokens = static_cast<double>(config.batch * config.sequence * config.accumulation);
  const double element = config.dtype == "float32" ? 4.0 : 2.0;
  const double passes = config.weight_cache ? 1.0 : static_cast<double>(config.accumulation);
  StepWork work;
  for (const nn::NamedFloat8Layer& named : nn::float8_layers(model)) {
    if (!named.layer->recipe) continue;
    if (const auto* linear = dynamic_cast<const nn::LinearImpl*>(named.layer)) {
      const double k = static_cast<double>(linear->options.in_features);
      const double n = static_cast<double>(linear->options.out_features);
      add_layer(work, named.layer->recipe->resolve(architecture.flavour), tokens, k, n, k * n,
                passes, element, !shares_its_input(named.fqn));
    } else if (const auto* experts = dynamic_cast<const nn::ExpertsImpl*>(named.layer)) {
      const LinearSpec spec = named.layer->recipe->resolve_experts(architecture.flavour);
      const double rows = tokens * static_cast<double>(config.model.moe.top_k);
      const double d = static_cast<double>(experts->options.features);
      const double f = static_cast<double>(experts->options.hidden);
      const double e = static_cast<double>(experts->options.experts);
      add_layer(work, spec, rows, d, 2 * f, e * d * 2 * f, passes, element, true);
      add_layer(work, spec, rows, f, d, e * d * f, passes, element, true);
    }
  }
  work.bf16_operations =
      models::flops_per_token(config.model, config.sequence).total() * tokens - work.fp8_operations;
  for (const auto& [name, tensor] : nn::unique_parameters(model)) {
    if (!tensor.requires_grad()) continue;
    const bool master = config.master_weights && tensor.scalar_type() == at::kBFloat16;
    const double size = static_cast<double>(tensor.element_size());
    // Parameter written (and read where there is no master), gradient read twice, two moments and
    // the master read and written.
    const double bytes = master ? size + 2 * size + 6 * 4.0 : 2 * size + 2 * size + 4 * size;
    work.bytes += bytes * static_cast<double>(tensor.numel());
  }
  return work;
}

}  // namespace octavo::app
