#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <vector>

#include "apps/octavo/bench.h"
#include "apps/octavo/bench_rates.h"
#include "apps/octavo/bench_report.h"
#include "apps/octavo/breakdown.h"
#include "apps/octavo/command.h"
#include "apps/octavo/timing.h"
#include "octavo/nn/experts.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/train/prepare.h"
#include "octavo/train/product_run.h"

namespace octavo::app {
namespace {

struct MoeShape {
  std::int64_t m, d, f, e;  // tokens (after routing), model, hidden, experts
};

MoeShape moe_shape(const std::string& text) {
  const std::vector<std::int64_t> sizes = parse_shape(text, 4);
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

std::vector<std::string> moe_shapes(const BenchOptions& options, c10::Device device) {
  if (!options.shapes.empty()) {
    for (const std::string& shape : options.shapes) moe_shape(shape);
    return options.shapes;
  }
  if (device.is_cpu()) return {"96x64x128x4"};
  // DeepSeek-V3 with 8 and 32 experts on a GPU, Llama 4 with 2 and 16, DeepSeek-MoE-16B.
  return {"32768x7168x2048x8", "32768x7168x2048x32", "16384x5120x8192x2", "16384x5120x8192x16",
          "49152x2048x1408x64"};
}

std::vector<Recipe> expert_recipes(const BenchOptions& options) {
  std::vector<Recipe> recipes;
  const std::vector<std::string> words =
      options.recipes.empty()
          ? std::vector<std::string>{"rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"}
          : split_recipes(options.recipes);
  for (const std::string& word : words) recipes.push_back(Recipe::parse(word));
  TORCH_CHECK(!recipes.empty(), "--recipes: expected at least one recipe, got '", options.recipes,
              "'; octavo recipes lists them");
  return recipes;
}

// END offsets of groups with shares from 1 to 12, the same in every run; or of equal ones.
at::Tensor group_ends(const MoeShape& shape, bool even) {
  at::Generator generator = at::detail::createCPUGenerator(/*seed=*/0);
  at::Tensor share = even ? at::ones({shape.e}) : at::rand({shape.e}, generator).pow(2) + 0.1;
  at::Tensor ends =
      (share.cumsum(0) / share.sum() * static_cast<double>(shape.m)).round().to(at::kInt);
  ends[-1] = shape.m;
  return ends;
}

// Bytes of an operand of `elements` that a kernel reads in bf16 and writes for each product that
// takes it in FP8; `read` 0: its producer writes it.
double operand_bytes(double elements, double read, const std::optional<LayoutSpec>& rows,
                     const std::optional<LayoutSpec>& transposed) {
  const int layouts = (rows ? 1 : 0) + (transposed ? 1 : 0);
  return elements * (layouts == 0 ? 0.0 : read + layouts);
}

// SwiGLU reads gate and up (backward: dh too) once; its results and every other operand are written
// once in each FP8 layout that a product takes; then the products.
double experts_floor(const MachineRates& rates, const LinearSpec& spec, const MoeShape& shape) {
  const double m = double(shape.m), d = double(shape.d), f = double(shape.f), e = double(shape.e);
  const auto x = [&](double elements, double read) {
    return operand_bytes(elements, read, spec.forward.a, spec.dw.b);
  };
  const auto w = [&](double elements) {
    return operand_bytes(elements, 2, spec.forward.b, spec.dx.b);
  };
  const auto dy = [&](double elements, double read) {
    return operand_bytes(elements, read, spec.dx.a, spec.dw.a);
  };
  const double bytes = x(m * d, 2) + w(e * 2 * f * d) + 4 * m * f + x(m * f, 0) + w(e * f * d) +
                       dy(m * d, 2) + 6 * m * f + dy(2 * m * f, 0);
  double fp8 = 0, bf16 = 0;
  for (const ProductSpec* product : {&spec.forward, &spec.dx, &spec.dw})
    (product->high_precision() ? bf16 : fp8) += 6.0 * m * d * f;
  return rates.floor_seconds(bytes, fp8, bf16);
}

}  // namespace

void bench_moe(const BenchOptions& options) {
  const std::vector<Recipe> recipes = expert_recipes(options);
  const c10::Device device = bench_device(options);
  const std::vector<std::string> shapes = moe_shapes(options, device);
  const Architecture architecture = architecture_of(device);
  std::vector<LinearSpec> specs;
  for (const Recipe& recipe : recipes)
    specs.push_back(recipe.resolve_experts(architecture.flavour));
  BenchReport report("moe", options, device,
                     {{"shape", "shape", 19, BenchColumn::kText},
                      {"recipe", "recipe", 18, BenchColumn::kText},
                      {"fast acc.", "fast_accumulation", 9, BenchColumn::kText},
                      {"ms", "milliseconds", 9, 4},
                      {"TFLOP/s", "tflops", 10, 4},
                      {"BF16 ms", "bf16_milliseconds", 9, 4},
                      {"ratio", "bf16_ratio", 6, 2},
                      {"forward", "forward_milliseconds", 9, 4},
                      {"BF16 f.", "bf16_forward_milliseconds", 9, 4},
                      {"ratio", "bf16_forward_ratio", 6, 2},
                      {"floor ms", "floor_milliseconds", 9, 4},
                      {"of floor", "of_floor", 8, 2}});
  report.fact("groups", options.even_groups ? "even" : "uneven");
  report.fact("micro_batches", options.micro_batches);
  nlohmann::ordered_json products, breakdown;
  for (std::size_t r = 0; r < recipes.size(); ++r) {
    const std::string text =
        train::products_text(specs[r], architecture, train::ProductKind::kGrouped);
    products[recipes[r].to_string()] = text;
    report.line(recipes[r].to_string() + ": products " + text + ", fast accumulation " +
                train::fast_accumulation_text(specs[r]));
  }
  report.fact("products", products);
  report.line(std::string(options.even_groups ? "even" : "uneven") + " groups, " +
              std::to_string(options.micro_batches) +
              " micro-batches that share the quantised weights; ms of one; MxDxFxE");
  const MachineRates rates = measure_rates(device, options.repetitions, RatesOf::kCopyAndProducts);
  report.fact("rates", rates.json());
  report.line(rates.text());

  for (const std::string& text : shapes) {
    const MoeShape shape = moe_shape(text);
    const int rotation = rotation_for(device, 4 * shape.m * shape.d);
    const at::TensorOptions bf16 = at::TensorOptions().dtype(at::kBFloat16).device(device);
    at::manual_seed(1);
    std::vector<at::Tensor> xs, dys;
    for (int i = 0; i < rotation; ++i) {
      xs.push_back(at::randn({shape.m, shape.d}, bf16).requires_grad_(true));
      dys.push_back(at::randn({shape.m, shape.d}, bf16));
    }
    const at::Tensor offs = group_ends(shape, options.even_groups).to(device);
    nn::Experts experts(nn::ExpertsOptions{
        .experts = shape.e, .features = shape.d, .hidden = shape.f, .tensor = bf16});
    if (options.micro_batches > 1) {
      nn::enable_weight_caches(*experts);
      nn::accumulate_gradients(*experts);
    }
    const auto forward = [&](int i) {
      const c10::NoGradGuard no_grad;
      nn::invalidate_weight_caches(*experts);
      for (int j = 0; j < options.micro_batches; ++j) {
        experts->forward(xs[static_cast<std::size_t>((i + j) % rotation)], offs);
      }
    };
    const auto step = [&](int i) {
      nn::invalidate_weight_caches(*experts);
      experts->gate_up_proj.mutable_grad().reset();
      experts->down_proj.mutable_grad().reset();
      for (int j = 0; j < options.micro_batches; ++j) {
        const auto at = static_cast<std::size_t>((i + j) % rotation);
        xs[at].mutable_grad().reset();
        experts->forward(xs[at], offs).backward(dys[at]);
      }
    };
    // BF16's first, then each recipe's: whole steps, then forward passes.
    std::vector<std::optional<Recipe>> contestants = {std::nullopt};
    contestants.insert(contestants.end(), recipes.begin(), recipes.end());
    std::vector<Contender> contenders;
    for (const auto& recipe : contestants) {
      contenders.push_back([&, recipe](int i) { experts->recipe = recipe, step(i); });
    }
    for (const auto& recipe : contestants) {
      contenders.push_back([&, recipe](int i) { experts->recipe = recipe, forward(i); });
    }
    std::vector<double> seconds = median_seconds(
        device, {.rotation = rotation, .repetitions = options.repetitions, .settle = kSettle},
        contenders);
    for (double& s : seconds) s /= options.micro_batches;
    const double operations = 18.0 * double(shape.m) * double(shape.d) * double(shape.f);
    const double bf16_ms = seconds[0] * 1e3, bf16_forward = seconds[contestants.size()] * 1e3;
    for (std::size_t r = 0; r < recipes.size(); ++r) {
      const double ms = seconds[r + 1] * 1e3;
      const double forward_ms = seconds[contestants.size() + r + 1] * 1e3;
      const double floor = experts_floor(rates, specs[r], shape) * 1e3;
      report.row({text, recipes[r].to_string(), train::fast_accumulation_text(specs[r]), ms,
                  operations / ms * 1e-9, bf16_ms, bf16_ms / ms, forward_ms, bf16_forward,
                  bf16_forward / forward_ms, floor, floor / ms});
    }
    if (!options.breakdown) continue;
    for (std::size_t c = 0; c < contestants.size(); ++c) {
      const std::string name = contestants[c] ? contestants[c]->to_string() : "BF16";
      const std::vector<KernelTime> kernels = kernel_times(device, [&] { contenders[c](0); });
      breakdown[text][name] = breakdown_json(kernels);
      report.line(text + " " + name + ", the kernels of one step:\n" + breakdown_text(kernels));
    }
  }
  if (options.breakdown) report.fact("breakdown", breakdown);
  report.finish();
}

}  // namespace octavo::app
