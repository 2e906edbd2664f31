#include "octavo/gemm/product.h"

#include <c10/util/Exception.h>

#include "octavo/quantize/architecture_of.h"

namespace octavo {

void check_formats(const ScaledTensor& a, const ScaledTensor& b) {
  const Format format_a = a.format(), format_b = b.format();
  TORCH_CHECK(flavour_of(format_a) == flavour_of(format_b),
              "a and b: expected formats of one flavour, got ", name(format_a), " (",
              name(flavour_of(format_a)), ") and ", name(format_b), " (",
              name(flavour_of(format_b)),
              "); quantise both with the same flavour: the same byte means other values in each");
  TORCH_CHECK(element_of(format_a) == Element::kE4M3 || element_of(format_b) == Element::kE4M3,
              "a and b: expected at least one e4m3 operand, got ", name(format_a), " and ",
              name(format_b), "; no FP8 hardware multiplies e5m2 by e5m2, quantise one as e4m3");
}

void check_scale_layout(const ScaledTensor& matrix, std::string_view argument) {
  TORCH_CHECK(matrix.scale_layout == default_scale_layout(matrix.granularity), argument,
              ".scale_layout: expected the layout default_scale_layout() gives for granularity ",
              to_string(matrix.granularity), ", got value ", static_cast<int>(matrix.scale_layout),
              "; quantise the operand with quantize_operand()");
}

void check_out_dtype(at::ScalarType out_dtype) {
  TORCH_CHECK(out_dtype == at::kFloat || out_dtype == at::kBFloat16 || out_dtype == at::kHalf,
              "out_dtype: expected float32, bfloat16 or float16, got ", out_dtype,
              "; convert the result afterwards");
}

ScalingFamily family_of(const ScaledTensor& a, const ScaledTensor& b) {
  if (a.granularity.mx) return ScalingFamily::kMx;
  if (a.granularity.block_columns != 0) return ScalingFamily::kBlockwise;
  const bool tensorwise =
      a.granularity == Granularity::tensorwise() && b.granularity == Granularity::tensorwise();
  return tensorwise ? ScalingFamily::kTensorwise : ScalingFamily::kRowwise;
}

Backend choose_backend(const ScaledTensor& a, const ScaledTensor& b, Backend asked,
                       NativeTable table) {
  const c10::Device device = a.data.device();
  if (device.is_cpu()) {
    TORCH_CHECK(asked == Backend::kAuto || asked == Backend::kReference,
                "backend: expected auto or reference on the CPU, got ", name(asked),
                "; the reference backend is the one that runs on the CPU");
    return Backend::kReference;
  }
  TORCH_CHECK(device.is_cuda(), "a: expected a CPU or CUDA tensor, got device ", device,
              "; move the operands there");
  const Architecture architecture = architecture_of(device);
  const Backend own = table(architecture, family_of(a, b), flavour_of(a.format())).backend;
  if (asked == Backend::kAuto || asked == own) return own;
  TORCH_CHECK(asked == Backend::kEmulated || asked == Backend::kAten, "backend: ", name(asked),
              " does not multiply ", name(family_of(a, b)), " operands of flavour ",
              name(flavour_of(a.format())), " on ", architecture.name, "; auto takes ", name(own));
  TORCH_CHECK(asked != Backend::kAten || flavour_of(a.format()) == architecture.flavour,
              "backend: aten would misread ", name(a.format()), " on ", architecture.name,
              "; auto takes ", name(own));
  return asked;
}

}  // namespace octavo
