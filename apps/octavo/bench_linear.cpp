#include <ATen/ATen.h>

#include <vector>

#include "apps/octavo/bench.h"
#include "apps/octavo/bench_rates.h"
#include "apps/octavo/bench_report.h"
#include "apps/octavo/command.h"
#include "apps/octavo/timing.h"
#include "octavo/nn/linear.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/train/prepare.h"
#include "octavo/train/product_run.h"

namespace octavo::app {
namespace {

// Bytes of one operand of `elements`: read once in BF16 where an FP8 product takes it, and written
// once for each layout taken.
double quantized_bytes(double elements, const std::optional<LayoutSpec>& rows,
                       const std::optional<LayoutSpec>& transposed) {
  const int layouts = (rows ? 1 : 0) + (transposed ? 1 : 0);
  return layouts == 0 ? 0.0 : elements * (2.0 + layouts);
}

double linear_floor(const MachineRates& rates, const LinearSpec& spec, double m, double k,
                    double n) {
  const double bytes = quantized_bytes(m * k, spec.forward.a, spec.dw.b) +
                       quantized_bytes(n * k, spec.forward.b, spec.dx.b) +
                       quantized_bytes(m * n, spec.dx.a, spec.dw.a);
  double fp8 = 0, bf16 = 0;
  for (const ProductSpec* product : {&spec.forward, &spec.dx, &spec.dw})
    (product->high_precision() ? bf16 : fp8) += 2.0 * m * k * n;
  return rates.floor_seconds(bytes, fp8, bf16);
}

std::vector<Recipe> recipes_of(const BenchOptions& options) {
  std::vector<Recipe> recipes;
  const std::vector<std::string> words =
      options.recipes.empty() ? recipe_names() : split_recipes(options.recipes);
  for (const std::string& word : words) recipes.push_back(Recipe::parse(word));
  TORCH_CHECK(!recipes.empty(), "--recipes: expected at least one recipe, got '", options.recipes,
              "'; octavo recipes lists them");
  return recipes;
}

}  // namespace

std::vector<std::string> linear_shapes(const BenchOptions& options, c10::Device device) {
  if (!options.shapes.empty()) {
    for (const std::string& shape : options.shapes) parse_shape(shape, 3);
    return options.shapes;
  }
  if (device.is_cpu()) return {"64x256x512", "256x512x512"};
  return {"16384x4096x14336", "16384x8192x8192", "16384x4096x4096", "4096x2048x2048"};
}

void bench_linear(const BenchOptions& options) {
  const std::vector<Recipe> recipes = recipes_of(options);
  const c10::Device device = bench_device(options);
  const std::vector<std::string> shapes = linear_shapes(options, device);
  const Architecture architecture = architecture_of(device);
  std::vector<LinearSpec> specs;
  for (const Recipe& recipe : recipes) specs.push_back(recipe.resolve(architecture.flavour));
  BenchReport report("linear", options, device,
                     {{"shape", "shape", 17, BenchColumn::kText},
                      {"recipe", "recipe", 18, BenchColumn::kText},
                      {"fast acc.", "fast_accumulation", 9, BenchColumn::kText},
                      {"ms", "milliseconds", 9, 4},
                      {"TFLOP/s", "tflops", 10, 4},
                      {"BF16 ms", "bf16_milliseconds", 9, 4},
                      {"ratio", "bf16_ratio", 6, 2},
                      {"floor ms", "floor_milliseconds", 9, 4},
                      {"of floor", "of_floor", 8, 2}});
  nlohmann::ordered_json products;
  for (std::size_t r = 0; r < recipes.size(); ++r)
    products[recipes[r].to_string()] = train::products_text(specs[r], architecture);
  report.fact("products", products);
  for (const auto& [recipe, text] : products.items())
    report.line(recipe + ": products " + text.get<std::string>());
  const MachineRates rates = measure_rates(device, options.repetitions, RatesOf::kCopyAndProducts);
  report.fact("rates", rates.json());
  report.line(rates.text());

  for (const std::string& shape : shapes) {
    const std::vector<std::int64_t> sizes = parse_shape(shape, 3);
    const std::int64_t m = sizes[0], k = sizes[1], n = sizes[2];
    const int rotation = rotation_for(device, 2 * m * (k + n));
    const at::TensorOptions bf16 = at::TensorOptions().dtype(at::kBFloat16).device(device);
    at::manual_seed(1);
    std::vector<at::Tensor> xs, dys;
    for (int i = 0; i < rotation; ++i) {
      xs.push_back(at::randn({m, k}, bf16).requires_grad_(true));
      dys.push_back(at::randn({m, n}, bf16));
    }
    std::vector<Contender> contenders;
    nn::Linear plain(nn::LinearOptions{.in_features = k, .out_features = n, .tensor = bf16});
    const auto add = [&](nn::Linear linear) {
      contenders.push_back([&xs, &dys, linear](int i) mutable {
        xs[i].mutable_grad().reset();
        linear->weight.mutable_grad().reset();
        linear->forward(xs[i]).backward(dys[i]);
      });
    };
    add(plain);
    for (const Recipe& recipe : recipes) {
      nn::Linear linear(nn::LinearOptions{.tensor = bf16});
      linear->options = plain->options;
      linear->tie_weight(plain->weight);
      linear->recipe = recipe;
      add(linear);
    }
    const std::vector<double> seconds = median_seconds(
        device, {.rotation = rotation, .repetitions = options.repetitions, .settle = kSettle},
        contenders);
    const double operations = 6.0 * static_cast<double>(m) * static_cast<double>(n * k);
    for (std::size_t r = 0; r < recipes.size(); ++r) {
      const double s = seconds[r + 1];
      const double floor = linear_floor(rates, specs[r], static_cast<double>(m),
                                        static_cast<double>(k), static_cast<double>(n));
      report.row({shape, recipes[r].to_string(), train::fast_accumulation_text(specs[r]), s * 1e3,
                  operations / s * 1e-12, seconds[0] * 1e3, seconds[0] / s, floor * 1e3,
                  floor / s});
    }
  }
  report.finish();
}

}  // namespace octavo::app
