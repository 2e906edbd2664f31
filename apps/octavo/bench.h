#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// What `octavo bench quantize`, `gemm`, `linear` and `moe` measure (`step`: bench_step.h). Each
/// compares its contenders in one process, in turns, by medians over rotated operands (timing.h),
/// and says how far from the floor it is (bench_rates.h). Results are a table on standard output
/// and, where asked for, JSON with the same figures (bench_report.h).
namespace octavo::app {

/// Options every benchmark has.
struct BenchOptions {
  std::string device = "cpu";  ///< cpu or cuda
  std::vector<std::string>
      shapes;           ///< "16384x4096x14336"; none: the benchmark's own for the device
  int threads = 0;      ///< of the CPU; 0: LibTorch's choice
  int repetitions = 9;  ///< timed samples of each contender; medians are reported
  std::optional<std::string> json;  ///< a file for the report; empty: standard output, no table
  std::string only;                 ///< lines whose name holds this text; empty: all of them
  std::string dtype = "bf16";       ///< of quantize's x: bf16, fp16 or fp32
  std::string recipes;              ///< linear's and moe's, a list; empty: all there are
  int micro_batches = 1;            ///< moe's: passes that share the quantised weights
  bool even_groups = false;         ///< moe's: every expert has as many tokens
  bool breakdown = false;           ///< moe's: the kernels of one step of each contender
};

/// One shape's extents, `count` of them: "512x1024" is {512, 1024}. Errors: another number of
/// extents, one that is no number from 1 to 2^31 - 1.
std::vector<std::int64_t> parse_shape(const std::string& text, std::size_t count);

/// options.shapes checked as MxKxN, or those of a linear: on a GPU the ones of docs/benchmarks, on
/// the CPU small ones.
std::vector<std::string> linear_shapes(const BenchOptions& options, c10::Device device);

/// options.device, opened, with options.threads set. Errors: as train::device_named().
c10::Device bench_device(const BenchOptions& options);

/// quantize_operand() for every granularity, rows only, transposed only and both layouts, against
/// the same mathematics as eager torch operators and against a copy of x. Shapes are MxK in
/// multiples of 128 (the eager expression views x in blocks).
///
/// Of each: nanoseconds per element; GB/s (x as often as it is read, plus the bytes and scales
/// written) and that rate over the copy's; the eager expression's time over ours; the floor, x read
/// once and the results written once. A layout that the device lacks is a line that says so.
/// Errors: a shape that does not fit, an unknown dtype, an `only` that no name holds (lists the
/// names), a device that is not there, a file that cannot be written.
void bench_quantize(const BenchOptions& options);

/// scaled_mm() of tensorwise, rowwise, 1x128 x 128x128, 1x128 x 1x128 and MX operands, with full
/// and, where the pair has it, fast accumulation, against the BF16 product of the same shape MxKxN.
/// Each line names what multiplies. The floor: the operations at the measured FP8 rate. Errors: as
/// above.
void bench_gemm(const BenchOptions& options);

/// One octavo::nn::Linear, forward and backward through autograd (dx and dw), under each recipe,
/// against at::linear in BF16 on the same weight, x and dy; shapes are MxKxN. The floor: every
/// operand of every product read once in BF16 and written once in each FP8 layout its products
/// take, then the products at the measured rates (those in high precision at BF16's). Errors: as
/// above; an unknown recipe.
void bench_linear(const BenchOptions& options);

/// One octavo::nn::Experts, forward and backward through autograd, and forward alone, under each
/// recipe, against the same module in BF16 (at::_grouped_mm and the same SwiGLU) on the same
/// weights, x, dy and groups; shapes are MxDxFxE, M being the tokens that reach experts. Groups are
/// uneven, shares from 1 to 12. With micro_batches, weights are quantised once for so many passes
/// and their gradients summed inside the product, BF16's by autograd. The floor: gate, up and dh
/// read once by SwiGLU, every other operand once in BF16, each FP8 layout written once, then the
/// products. Errors: as above; tensorwise (names rowwise).
void bench_moe(const BenchOptions& options);

}  // namespace octavo::app
