#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "apps/octavo/bench.h"
#include "apps/octavo/bench_rates.h"
#include "apps/octavo/bench_report.h"
#include "apps/octavo/timing.h"
#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/targets.h"
#include "octavo/quantize/quantize.h"
#include "octavo/recipe/nearest.h"
#include "octavo/train/prepare.h"

namespace octavo::app {
namespace {

struct Case {
  std::string name;
  OperandSpec spec;
};

LayoutSpec layout(const Granularity& granularity) { return {.granularity = granularity}; }

// Every granularity alone and in both layouts, then the recipes' mixed pair.
std::vector<Case> cases() {
  std::vector<Case> out;
  const Granularity all[] = {Granularity::tensorwise(),  Granularity::rowwise(),
                             Granularity::colwise(),     Granularity::block_1x128(),
                             Granularity::block_128x1(), Granularity::block_128x128(),
                             Granularity::mx_1x32()};
  for (const Granularity& g : all) {
    out.push_back({to_string(g) + ", rows", {.rows = layout(g)}});
  }
  for (const Granularity& g : all) {
    out.push_back({to_string(g) + ", transposed", {.transposed = layout(g)}});
  }
  for (const Granularity& g : all) {
    out.push_back({to_string(g) + ", both", {.rows = layout(g), .transposed = layout(g)}});
  }
  out.push_back(
      {"rowwise, rows + tensorwise, transposed",
       {.rows = layout(Granularity::rowwise()), .transposed = layout(Granularity::tensorwise())}});
  return out;
}

// One layout of x as eager torch expresses it: amax, scale in fp64, multiply, clamp, cast. Each
// step is one operator over the whole matrix, as in a model that is not compiled.
void eager_layout(const at::Tensor& x, const LayoutSpec& spec) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const Granularity& g = spec.granularity;
  const std::int64_t height = g.block_rows ? g.block_rows : rows;
  const std::int64_t width = g.block_columns ? g.block_columns : columns;
  const double max = limits(spec.format).max;
  const at::Tensor blocks = x.view({rows / height, height, columns / width, width});
  const at::Tensor amax = blocks.abs().amax({1, 3}, /*keepdim=*/true).to(at::kFloat);
  at::Tensor inv_scale, scale;
  if (g.mx) {  // RCEIL: the exponent of amax / max, rounded up
    const at::Tensor bits = amax.div(max).view(at::kInt);
    const at::Tensor exponent = bits.bitwise_right_shift(23) + bits.bitwise_and(0x7FFFFF).ne(0);
    const at::Tensor code = exponent.clamp(0, 254);
    inv_scale = (254 - code).bitwise_left_shift(23).view(at::kFloat);
    scale = code.to(at::kByte).view(at::kFloat8_e8m0fnu);
  } else {
    inv_scale = (max / amax.to(at::kDouble).clamp_min(kAmaxFloor)).to(at::kFloat);
    scale = inv_scale.reciprocal();
  }
  const at::Tensor data = (blocks.to(at::kFloat) * inv_scale).clamp(-max, max);
  data.view({rows, columns}).to(scalar_type(spec.format));
}

void eager(const at::Tensor& x, const OperandSpec& spec) {
  if (spec.rows) eager_layout(x, *spec.rows);
  if (spec.transposed) eager_layout(x.t().contiguous(), *spec.transposed);
}

std::int64_t bytes_written(const ScaledTensor& layout) {
  return layout.defined() ? static_cast<std::int64_t>(layout.data.nbytes() + layout.scale.nbytes())
                          : 0;
}

struct QuantizeResult {
  double seconds, eager_seconds, copy_seconds;
  double bytes;        // moved by ours
  double least_bytes;  // x read once, the results written once
};

QuantizeResult measure(const Case& c, const std::vector<at::Tensor>& xs, c10::Device device,
                       int repetitions) {
  std::uint64_t passes = kernels::counters().amax + kernels::counters().quantize;
  const QuantizedOperand once = quantize_operand(xs[0], c.spec);
  passes = kernels::counters().amax + kernels::counters().quantize - passes;
  at::Tensor copy = at::empty_like(xs[0]);
  const std::vector<double> seconds =
      median_seconds(device, {.rotation = static_cast<int>(xs.size()), .repetitions = repetitions},
                     {[&](int i) { quantize_operand(xs[i], c.spec); },
                      [&](int i) { eager(xs[i], c.spec); }, [&](int i) { copy.copy_(xs[i]); }});
  const double read = static_cast<double>(xs[0].nbytes());
  const double written =
      static_cast<double>(bytes_written(once.rows) + bytes_written(once.transposed));
  return {seconds[0], seconds[1], seconds[2], static_cast<double>(passes) * read + written,
          read + written};
}

// Why the device does not quantise so; empty where it does.
std::string refusal(const Case& c, const at::Tensor& x) {
  try {
    quantize_operand(x, c.spec);
    return "";
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

at::ScalarType dtype_of(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  if (name == "fp32") return at::kFloat;
  TORCH_CHECK(false, "--dtype: expected bf16, fp16 or fp32, got ", name, "; give one of them");
}

std::vector<Case> chosen_cases(const std::string& only) {
  std::vector<Case> chosen = cases();
  std::vector<std::string> names;
  for (const Case& c : chosen) names.push_back("\"" + c.name + "\"");
  std::erase_if(chosen, [&](const Case& c) { return c.name.find(only) == std::string::npos; });
  TORCH_CHECK(!chosen.empty(), "--only: no pair's name holds \"", only,
              "\"; give a part of one of: ", join(names));
  return chosen;
}

}  // namespace

void bench_quantize(const BenchOptions& options) {
  const at::ScalarType dtype = dtype_of(options.dtype);
  const std::vector<Case> chosen = chosen_cases(options.only);
  const c10::Device device = bench_device(options);
  std::vector<std::string> shapes = options.shapes;
  if (shapes.empty()) {
    shapes = device.is_cpu()
                 ? std::vector<std::string>{"4096x4096"}
                 : std::vector<std::string>{"16384x4096", "16384x8192", "16384x14336", "4096x2048"};
  }
  for (const std::string& shape : shapes) {
    for (const std::int64_t extent : parse_shape(shape, 2))
      TORCH_CHECK(extent % 128 == 0,
                  "--shapes: expected multiples of 128 (the eager expression "
                  "views x in blocks), got ",
                  shape, "; give 128x256 and the like");
  }
  BenchReport report("quantize", options, device,
                     {{"shape", "shape", 12, BenchColumn::kText},
                      {"layouts", "layouts", 38, BenchColumn::kText},
                      {"us", "microseconds", 10, 1},
                      {"ns/element", "ns_per_element", 10, 4},
                      {"GB/s", "gb_per_s", 8, 2},
                      {"copy GB/s", "copy_gb_per_s", 9, 2},
                      {"of copy", "of_copy", 7, 2},
                      {"floor us", "floor_microseconds", 10, 1},
                      {"of floor", "of_floor", 8, 2},
                      {"eager ns", "eager_ns_per_element", 9, 3},
                      {"ratio", "eager_ratio", 6, 1}});
  report.fact("dtype", options.dtype);
  report.line("x in " + options.dtype);
  if (device.is_cpu()) {
    const std::string target = kernels::cpu_target_name(kernels::cpu_targets().front());
    report.fact("target", target);
    report.line("kernels for " + target);
  }
  const MachineRates rates = measure_rates(device, options.repetitions, RatesOf::kCopy);
  report.fact("rates", rates.json());
  report.line(rates.text());
  for (const std::string& shape : shapes) {
    const std::vector<std::int64_t> sizes = parse_shape(shape, 2);
    at::manual_seed(1);
    std::vector<at::Tensor> xs;
    const at::TensorOptions on_device = at::TensorOptions().dtype(dtype).device(device);
    const std::int64_t bytes = sizes[0] * sizes[1] * static_cast<std::int64_t>(elementSize(dtype));
    for (int i = rotation_for(device, bytes); i > 0; --i) xs.push_back(at::randn(sizes, on_device));
    const double elements = static_cast<double>(xs[0].numel());
    for (const Case& c : chosen) {
      if (const std::string why = refusal(c, xs[0]); !why.empty()) {
        report.skipped({shape, c.name}, why);
        continue;
      }
      const QuantizeResult r = measure(c, xs, device, options.repetitions);
      const double copy_rate = 2.0 * static_cast<double>(xs[0].nbytes()) / r.copy_seconds;
      const double rate = r.bytes / r.seconds;
      const double floor = rates.floor_seconds(r.least_bytes);
      report.row({shape, c.name, r.seconds * 1e6, r.seconds * 1e9 / elements, rate * 1e-9,
                  copy_rate * 1e-9, rate / copy_rate, floor * 1e6, floor / r.seconds,
                  r.eager_seconds * 1e9 / elements, r.eager_seconds / r.seconds});
    }
  }
  report.finish();
}

}  // namespace octavo::app
