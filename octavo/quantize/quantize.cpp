#include "octavo/quantize/quantize.h"

#include <c10/util/Exception.h>

#include <algorithm>

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
  const at::ScalarType dtype = granularity.mx ? at::kFloat8_e8m0fnu : at::kFloat;
  switch (default_scale_layout(granularity)) {
    case ScaleLayout::kColumnMajor:
      return empty_strided_on(device, {r, c}, {1, r}, dtype);
    case ScaleLayout::kPadded4:
      return padded_scale(r, c, device);
    default:
      return empty_on(device, {r, c}, dtype);
  }
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
  const c10::Device device = x.device();
  QuantizedOperand out;
  if (spec.rows) out.rows = empty_layout(*spec.rows, m, k, device);
  if (spec.transposed) out.transposed = empty_layout(*spec.transposed, k, m, device);
  if (x.is_cpu()) {
    quantize_cpu(x, spec, out);
  } else {
#if OCTAVO_WITH_CUDA
    quantize_cuda(x, spec, out);
#else
    TORCH_CHECK(false, "x: expected a CPU tensor, got one on ", x.device(),
                "; this build has no GPU kernels: build the preset cuda, or move it with x.cpu()");
#endif
  }
  return out;
}

}  // namespace octavo
