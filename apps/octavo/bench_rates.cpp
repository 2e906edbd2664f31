#include "apps/octavo/bench_rates.h"

#include <ATen/ATen.h>

#include "apps/octavo/command.h"
#include "apps/octavo/timing.h"
#include "octavo/gemm/scaled_mm.h"
#include "octavo/quantize/quantize.h"

namespace octavo::app {

double MachineRates::floor_seconds(double bytes, double fp8_operations,
                                   double bf16_operations) const {
  double seconds = bytes / copy;
  if (fp8_operations > 0) seconds += fp8_operations / fp8;
  if (bf16_operations > 0) seconds += bf16_operations / bf16;
  return seconds;
}

std::string MachineRates::text() const {
  std::string out = "copy " + fixed(copy * 1e-9, 1) + " GB/s";
  if (bf16 > 0) {
    out += ", BF16 product " + fixed(bf16 * 1e-12, 4) + " TFLOP/s, FP8 product " +
           fixed(fp8 * 1e-12, 4) + " TFLOP/s (tensorwise, fast accumulation)";
  }
  return out;
}

nlohmann::ordered_json MachineRates::json() const {
  nlohmann::ordered_json out = {{"copy_gb_per_s", copy * 1e-9}};
  if (bf16 > 0) {
    out["bf16_tflops"] = bf16 * 1e-12;
    out["fp8_tflops"] = fp8 * 1e-12;
  }
  return out;
}

MachineRates measure_rates(c10::Device device, int repetitions, RatesOf what) {
  const at::TensorOptions bf16 = at::TensorOptions().dtype(at::kBFloat16).device(device);
  MachineRates rates;
  {
    const std::int64_t bytes = device.is_cuda() ? std::int64_t{1} << 30 : std::int64_t{1} << 24;
    const at::Tensor from = at::ones({bytes / 2}, bf16);
    at::Tensor to = at::empty_like(from);
    const auto seconds =
        median_seconds(device, {.repetitions = repetitions}, {[&](int) { to.copy_(from); }});
    rates.copy = 2.0 * static_cast<double>(bytes) / seconds[0];
  }
  if (what == RatesOf::kCopy) return rates;
  const std::int64_t n = device.is_cuda() ? 8192 : 256;
  const at::Tensor a = at::randn({n, n}, bf16), b = at::randn({n, n}, bf16);
  const OperandSpec tensorwise{.rows = LayoutSpec{.granularity = Granularity::tensorwise()}};
  const ScaledTensor a8 = quantize_operand(a, tensorwise).rows,
                     b8 = quantize_operand(b, tensorwise).rows;
  const auto seconds =
      median_seconds(device, {.repetitions = repetitions, .settle = kSettle},
                     {[&](int) { at::linear(a, b); },
                      [&](int) { scaled_mm(a8, b8, {.fast_accumulation = true}); }});
  const double operations = 2.0 * static_cast<double>(n) * static_cast<double>(n * n);
  rates.bf16 = operations / seconds[0];
  rates.fp8 = operations / seconds[1];
  return rates;
}

}  // namespace octavo::app
