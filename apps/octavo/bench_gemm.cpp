#include <ATen/ATen.h>

#include <vector>

#include "apps/octavo/bench.h"
#include "apps/octavo/bench_rates.h"
#include "apps/octavo/bench_report.h"
#include "apps/octavo/timing.h"
#include "octavo/gemm/scaled_mm.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/quantize/quantize.h"
#include "octavo/recipe/nearest.h"
#include "octavo/train/prepare.h"
#include "octavo/train/product_run.h"

namespace octavo::app {
namespace {

// A pair of operands and whether the product may keep partial sums in fewer bits.
struct ProductCase {
  Granularity a, b;
  const char* fast_accumulation;  // "on", "off"; "none": the pair has none

  std::string operands() const { return to_string(a) + " . " + to_string(b); }
  ProductSpec spec() const {
    return {.a = LayoutSpec{.granularity = a}, .b = LayoutSpec{.granularity = b}};
  }
  MatmulOptions options() const { return {.fast_accumulation = fast_accumulation[1] == 'n'}; }
};

std::vector<ProductCase> product_cases(const std::string& only) {
  std::vector<ProductCase> cases;
  for (const Granularity& g : {Granularity::tensorwise(), Granularity::rowwise()}) {
    cases.push_back({g, g, "off"});
    cases.push_back({g, g, "on"});
  }
  const Granularity block = Granularity::block_1x128(), mx = Granularity::mx_1x32();
  cases.push_back({block, Granularity::block_128x128(), "none"});
  cases.push_back({block, block, "none"});
  cases.push_back({mx, mx, "none"});
  std::vector<std::string> names;
  for (const ProductCase& c : cases) names.push_back("\"" + c.operands() + "\"");
  std::erase_if(cases,
                [&](const ProductCase& c) { return c.operands().find(only) == std::string::npos; });
  TORCH_CHECK(!cases.empty(), "--only: no pair's name holds \"", only,
              "\"; give a part of one of: ", join(names));
  return cases;
}

ScaledTensor quantized(const at::Tensor& x, const Granularity& granularity) {
  return quantize_operand(x, {.rows = LayoutSpec{.granularity = granularity}}).rows;
}

}  // namespace

void bench_gemm(const BenchOptions& options) {
  const std::vector<ProductCase> cases = product_cases(options.only);
  const c10::Device device = bench_device(options);
  const std::vector<std::string> shapes = linear_shapes(options, device);
  BenchReport report("gemm", options, device,
                     {{"shape", "shape", 17, BenchColumn::kText},
                      {"operands", "operands", 23, BenchColumn::kText},
                      {"runs", "backend", 29, BenchColumn::kText},
                      {"fast acc.", "fast_accumulation", 9, BenchColumn::kText},
                      {"ms", "milliseconds", 9, 4},
                      {"TFLOP/s", "tflops", 10, 4},
                      {"BF16 ms", "bf16_milliseconds", 9, 4},
                      {"ratio", "bf16_ratio", 6, 2},
                      {"floor ms", "floor_milliseconds", 9, 4},
                      {"of floor", "of_floor", 8, 2}});
  const MachineRates rates = measure_rates(device, options.repetitions, RatesOf::kCopyAndProducts);
  report.fact("rates", rates.json());
  report.line(rates.text());
  const Architecture architecture = architecture_of(device);
  for (const std::string& shape : shapes) {
    const std::vector<std::int64_t> sizes = parse_shape(shape, 3);
    const std::int64_t m = sizes[0], k = sizes[1], n = sizes[2];
    const int rotation = rotation_for(device, m * k + n * k);
    const at::TensorOptions bf16 = at::TensorOptions().dtype(at::kBFloat16).device(device);
    at::manual_seed(1);
    std::vector<at::Tensor> as, bs;
    for (int i = 0; i < rotation; ++i) {
      as.push_back(at::randn({m, k}, bf16));
      bs.push_back(at::randn({n, k}, bf16));
    }
    struct Operands {
      std::vector<ScaledTensor> a, b;
    };
    std::vector<Operands> operands(cases.size());
    std::vector<Contender> contenders = {[&](int i) { at::linear(as[i], bs[i]); }};
    for (std::size_t c = 0; c < cases.size(); ++c) {
      for (int i = 0; i < rotation; ++i) {
        operands[c].a.push_back(quantized(as[i], cases[c].a));
        operands[c].b.push_back(quantized(bs[i], cases[c].b));
      }
      contenders.push_back(
          [&, c](int i) { scaled_mm(operands[c].a[i], operands[c].b[i], cases[c].options()); });
    }
    const std::vector<double> seconds = median_seconds(
        device, {.rotation = rotation, .repetitions = options.repetitions, .settle = kSettle},
        contenders);
    const double operations = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
    const double floor = rates.floor_seconds(0, operations);
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const double s = seconds[c + 1];
      report.row({shape, cases[c].operands(),
                  train::product_run(cases[c].spec(), architecture).text(),
                  cases[c].fast_accumulation, s * 1e3, operations / s * 1e-12, seconds[0] * 1e3,
                  seconds[0] / s, floor * 1e3, floor / s});
    }
  }
  report.finish();
}

}  // namespace octavo::app
