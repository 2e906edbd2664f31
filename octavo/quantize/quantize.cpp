#include "octavo/quantize/quantize.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "octavo/quantize/allocate.h"
#include "octavo/quantize/layout.h"
#include "octavo/quantize/quantize_device.h"

namespace octavo {
namespace {

constexpr Granularity kSupported[] = {
    Granularity::tensorwise(),  Granularity::rowwise(),     Granularity::colwise(),
    Granularity::block_1x128(), Granularity::block_128x1(), Granularity::block_128x128(),
    Granularity::mx_1x32(),
};

// Scales of `granularity` for an R x C matrix in the layout products expect.
at::Tensor empty_scale(const Granularity& granularity, std::int64_t rows, std::int64_t columns,
                       c10::Device device) {
  const std::int64_t r = granularity.scale_rows(rows), c = granularity.scale_columns(columns);
  if (default_scale_layout(granularity) == ScaleLayout::kPadded4) return padded_scale(r, c, device);
  return empty_strided_on(device, {r, c}, default_scale_strides(granularity, r, c),
                          granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat);
}

#if OCTAVO_WITH_CUDA
// Where the host is the bottleneck; above, what is freed early leaves room for the product.
constexpr std::int64_t kTogetherBytes = std::int64_t{32} << 20;
constexpr std::int64_t kPieceBytes = 256;  // the allocator's alignment, for every piece

// Where the tensors of a layout (rows, columns) lie in one allocation.
struct LayoutPieces {
  const LayoutSpec& spec;
  std::int64_t rows, columns, data_at, scale_at;

  // From byte `end` on, which moves behind them.
  LayoutPieces(const LayoutSpec& of, std::int64_t r, std::int64_t c, std::int64_t& end)
      : spec(of), rows(r), columns(c) {
    const std::int64_t scales =
        spec.granularity.scale_rows(rows) * padded4(spec.granularity.scale_columns(columns));
    data_at = end;
    scale_at = data_at + whole_pieces(rows * columns);
    end = scale_at + whole_pieces(scales * (spec.granularity.mx ? 1 : 4));
  }

  static std::int64_t whole_pieces(std::int64_t bytes) {
    return (bytes + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
  }

  // empty_layout() there.
  ScaledTensor in(const at::Tensor& memory) const {
    const Granularity& granularity = spec.granularity;
    const std::int64_t r = granularity.scale_rows(rows), c = granularity.scale_columns(columns);
    return {
        .data = piece_of(memory, data_at, {rows, columns}, {columns, 1}, scalar_type(spec.format)),
        .scale = piece_of(memory, scale_at, {r, c}, default_scale_strides(granularity, r, c),
                          granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat),
        .granularity = granularity,
        .scale_layout = default_scale_layout(granularity),
        .logical_sizes = {rows, columns}};
  }
};

// Allocates what spec.together names, and the kernels' scratch, in one piece, unless that is large.
void allocate_together(const at::Tensor& x, const OperandSpec& spec, QuantizedOperand& out,
                       at::Tensor& scratch) {
  const std::int64_t m = x.size(0), k = x.size(1);
  if (spec.together == Together::kNone || m == 0 || k == 0) return;
  std::int64_t bytes = 0;
  std::optional<LayoutPieces> rows, transposed;
  if (spec.rows) rows.emplace(*spec.rows, m, k, bytes);
  if (spec.transposed && spec.together == Together::kBoth) {
    transposed.emplace(*spec.transposed, k, m, bytes);
  }
  if (bytes == 0 || bytes > kTogetherBytes) return;
  const std::int64_t floats = quantize_scratch(x);
  const at::Tensor memory = empty_on(x.device(), {bytes + floats * 4}, at::kByte);
  if (rows) out.rows = rows->in(memory);
  if (transposed) out.transposed = transposed->in(memory);
  scratch = piece_of(memory, bytes, {floats}, {1}, at::kFloat);
}
#endif

void check_amax(const char* which, const at::Tensor& amax, std::int64_t count,
                const at::Tensor& x) {
  if (!amax.defined()) return;
  TORCH_CHECK(amax.numel() == count && amax.scalar_type() == at::kFloat && amax.is_contiguous() &&
                  amax.device() == x.device(),
              "spec.amax.", which, ": expected ", count, " float32 numbers, contiguous on ",
              x.device(), ", got ", amax.scalar_type(), " ", amax.sizes(), " on ", amax.device(),
              "; leave it undefined where x's amax is not known");
}

}  // namespace

void check_operand(const char* argument, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), argument,
              ": expected a CPU or CUDA tensor, got one on ", tensor.device(), "; move it with ",
              argument, ".cpu()");
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, argument,
              ": expected float32, bfloat16 or float16, got ", dtype, "; convert it with ",
              argument, ".to(torch::kFloat)");
}

void check_layout(const LayoutSpec& spec, const char* layout) {
  bool supported = false;
  for (const Granularity& granularity : kSupported) supported |= spec.granularity == granularity;
  TORCH_CHECK(supported, "spec.", layout, ".granularity: expected tensorwise, rowwise, colwise, ",
              "1x128, 128x1, 128x128 or mx1x32, got ", to_string(spec.granularity),
              "; use one of Granularity's named instances");
  TORCH_CHECK(!spec.granularity.mx || flavour_of(spec.format) == Flavour::kOCP, "spec.", layout,
              ".format: MX is defined for e4m3fn and e5m2 only, got ", name(spec.format),
              "; use the recipe rowwise with FNUZ formats, or an OCP format with MX");
}

at::Tensor padded_scale(std::int64_t r, std::int64_t c, c10::Device device) {
  const std::int64_t row = padded4(c);
  const at::Tensor whole = empty_on(device, {r * row}, at::kFloat);
  if (device.is_cpu()) std::fill_n(whole.mutable_data_ptr<float>(), r * row, 0.0f);
  return whole.as_strided({r, c}, {row, 1});
}

ScaledTensor empty_layout(const LayoutSpec& spec, std::int64_t rows, std::int64_t columns,
                          c10::Device device) {
  ScaledTensor out;
  out.data = empty_on(device, {rows, columns}, scalar_type(spec.format));
  out.scale = empty_scale(spec.granularity, rows, columns, device);
  out.granularity = spec.granularity;
  out.scale_layout = default_scale_layout(spec.granularity);
  out.logical_sizes = {rows, columns};
  return out;
}

QuantizedOperand quantize_operand(const at::Tensor& x, const OperandSpec& spec) {
  TORCH_CHECK(x.dim() == 2, "x: expected a matrix (M, K), got ", x.dim(), " dimensions of sizes ",
              x.sizes(), "; flatten the leading dimensions with reshape({-1, K})");
  check_operand("x", x);
  TORCH_CHECK(spec.rows || spec.transposed,
              "spec: expected at least one layout, got neither rows nor transposed; set one");
  if (spec.rows) check_layout(*spec.rows, "rows");
  if (spec.transposed) check_layout(*spec.transposed, "transposed");
  const std::int64_t m = x.size(0), k = x.size(1);
  check_amax("tensor", spec.amax.tensor, 1, x);
  check_amax("rows", spec.amax.rows, m, x);
  check_amax("columns", spec.amax.columns, k, x);

  const c10::Device device = x.device();
  QuantizedOperand out;
  at::Tensor scratch;
#if OCTAVO_WITH_CUDA
  if (x.is_cuda()) allocate_together(x, spec, out, scratch);
#endif
  if (spec.rows && !out.rows.defined()) out.rows = empty_layout(*spec.rows, m, k, device);
  if (spec.transposed && !out.transposed.defined()) {
    out.transposed = empty_layout(*spec.transposed, k, m, device);
  }
  if (x.is_cpu()) {
    quantize_cpu(x, spec, out);
  } else {
#if OCTAVO_WITH_CUDA
    quantize_cuda(x, spec, out, scratch);
#else
    TORCH_CHECK(false, "x: expected a CPU tensor, got one on ", x.device(),
                "; this build has no GPU kernels: build the preset cuda, or move it with x.cpu()");
#endif
  }
  return out;
}

}  // namespace octavo
