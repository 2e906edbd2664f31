#include "apps/octavo/bench_quantize.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/targets.h"
#include "octavo/quantize/quantize.h"
#include "octavo/recipe/nearest.h"
#include "octavo/train/metrics.h"

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

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::int64_t bytes_written(const ScaledTensor& layout) {
  return layout.defined() ? static_cast<std::int64_t>(layout.data.nbytes() + layout.scale.nbytes())
                          : 0;
}

struct Result {
  std::string name;
  double seconds, eager_seconds, copy_seconds;
  double bytes;  // moved by ours
};

Result measure(const Case& c, const at::Tensor& x, int repetitions) {
  std::vector<double> ours, theirs, copies;
  at::Tensor copy = at::empty_like(x);
  std::uint64_t passes = kernels::counters().amax + kernels::counters().quantize;
  const QuantizedOperand once = quantize_operand(x, c.spec);
  passes = kernels::counters().amax + kernels::counters().quantize - passes;
  eager(x, c.spec);
  copy.copy_(x);
  for (int i = 0; i < repetitions; ++i) {
    ours.push_back(seconds_of([&] { quantize_operand(x, c.spec); }));
    theirs.push_back(seconds_of([&] { eager(x, c.spec); }));
    copies.push_back(seconds_of([&] { copy.copy_(x); }));
  }
  const double bytes = static_cast<double>(passes) * static_cast<double>(x.nbytes()) +
                       static_cast<double>(bytes_written(once.rows)) +
                       static_cast<double>(bytes_written(once.transposed));
  return {c.name, train::median(ours), train::median(theirs), train::median(copies), bytes};
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

void bench_quantize(const BenchQuantizeOptions& options) {
  const at::ScalarType dtype = dtype_of(options.dtype);
  for (const auto& [name, value] : {std::pair<const char*, std::int64_t>{"--rows", options.rows},
                                    {"--columns", options.columns}}) {
    TORCH_CHECK(value > 0 && value % 128 == 0, name,
                ": expected a multiple of 128 (the eager expression views x in blocks), got ",
                value, "; give 128, 256, ...");
  }
  TORCH_CHECK(options.repetitions >= 1, "--repetitions: expected at least 1, got ",
              options.repetitions, "; give 1 or more");
  const std::vector<Case> chosen = chosen_cases(options.only);
  if (options.threads > 0) at::set_num_threads(options.threads);

  at::manual_seed(1);
  const at::Tensor x = at::randn({options.rows, options.columns}).to(dtype);
  const auto elements = static_cast<double>(x.numel());
  const std::string target = kernels::cpu_target_name(kernels::cpu_targets().front());
  nlohmann::json results = nlohmann::json::array();
  if (!options.json) {
    std::printf("quantize_operand, %s %lldx%lld, %d threads, %s; medians of %d\n",
                options.dtype.c_str(), static_cast<long long>(options.rows),
                static_cast<long long>(options.columns), at::get_num_threads(), target.c_str(),
                options.repetitions);
    std::printf("%-40s %10s %8s %8s %10s %8s\n", "layouts", "ns/element", "GB/s", "of copy",
                "eager ns", "ratio");
  }
  for (const Case& c : chosen) {
    const Result r = measure(c, x, options.repetitions);
    const double copy_rate = 2.0 * static_cast<double>(x.nbytes()) / r.copy_seconds;
    const double rate = r.bytes / r.seconds;
    if (options.json) {
      results.push_back({{"layouts", r.name},
                         {"ns_per_element", r.seconds * 1e9 / elements},
                         {"gb_per_s", rate * 1e-9},
                         {"copy_gb_per_s", copy_rate * 1e-9},
                         {"of_copy", rate / copy_rate},
                         {"eager_ns_per_element", r.eager_seconds * 1e9 / elements},
                         {"eager_ratio", r.eager_seconds / r.seconds}});
    } else {
      std::printf("%-40s %10.3f %8.2f %8.2f %10.3f %8.1f\n", r.name.c_str(),
                  r.seconds * 1e9 / elements, rate * 1e-9, rate / copy_rate,
                  r.eager_seconds * 1e9 / elements, r.eager_seconds / r.seconds);
      std::fflush(stdout);
    }
  }
  if (options.json) {
    const nlohmann::json out = {{"benchmark", "quantize"},
                                {"rows", options.rows},
                                {"columns", options.columns},
                                {"dtype", options.dtype},
                                {"threads", at::get_num_threads()},
                                {"target", target},
                                {"repetitions", options.repetitions},
                                {"results", results}};
    std::printf("%s\n", out.dump(2).c_str());
  }
}

}  // namespace octavo::app
