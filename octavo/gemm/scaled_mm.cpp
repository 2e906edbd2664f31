#include "octavo/gemm/scaled_mm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "octavo/gemm/aten.h"
#include "octavo/gemm/cublaslt.h"
#include "octavo/gemm/emulated.h"
#include "octavo/gemm/reference.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/quantize/check.h"

namespace octavo {
namespace {

bool is_block_128(const Granularity& granularity) {
  return granularity == Granularity::block_1x128() || granularity == Granularity::block_128x128();
}

bool supported(const Granularity& a, const Granularity& b) {
  const auto whole_rows = [](const Granularity& g) {
    return g == Granularity::tensorwise() || g == Granularity::rowwise();
  };
  if (whole_rows(a) && whole_rows(b)) return true;
  if (a == Granularity::mx_1x32() && b == Granularity::mx_1x32()) return true;
  return is_block_128(a) && is_block_128(b) &&
         !(a == Granularity::block_128x128() && b == Granularity::block_128x128());
}

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

void check_bias(const at::Tensor& bias, const ScaledTensor& a, const ScaledTensor& b) {
  const at::ScalarType dtype = bias.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
              "bias: expected dtype float32, bfloat16 or float16, got ", dtype,
              "; convert it first");
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == b.rows(), "bias: expected sizes [", b.rows(),
              "] (one element for each row of b), got ", bias.sizes(), "; check out_features");
  TORCH_CHECK(bias.device() == a.data.device(), "bias: expected device ", a.data.device(),
              " as a, got ", bias.device(), "; move it first");
}

void check_scale_layout(const ScaledTensor& matrix, std::string_view argument) {
  TORCH_CHECK(matrix.scale_layout == default_scale_layout(matrix.granularity), argument,
              ".scale_layout: expected the layout default_scale_layout() gives for granularity ",
              to_string(matrix.granularity), ", got value ", static_cast<int>(matrix.scale_layout),
              "; quantise the operand with quantize_operand()");
}

// Everything about the arguments that does not depend on the backend.
void check_product(const ScaledTensor& a, const ScaledTensor& b, const MatmulOptions& options) {
  check_scaled_tensor(a, "a");
  check_scaled_tensor(b, "b");
  check_scale_layout(a, "a");
  check_scale_layout(b, "b");
  TORCH_CHECK(a.columns() == b.columns(), "a and b: expected equal numbers of columns (K), got a ",
              at::IntArrayRef(a.logical_sizes), " and b ", at::IntArrayRef(b.logical_sizes),
              "; both operands are K-contiguous, out[M,N] = a[M,K] . b[N,K]^T");
  TORCH_CHECK(a.data.device() == b.data.device(), "b: expected device ", a.data.device(),
              " as a, got ", b.data.device(), "; move one of them first");
  check_formats(a, b);
  TORCH_CHECK(supported(a.granularity, b.granularity),
              "a and b: expected granularities tensorwise or rowwise with tensorwise or rowwise, "
              "1x128 with 1x128 or 128x128, or mx1x32 with mx1x32, got ",
              to_string(a.granularity), " and ", to_string(b.granularity),
              "; quantise both operands by the same recipe");
  TORCH_CHECK(options.out_dtype == at::kFloat || options.out_dtype == at::kBFloat16 ||
                  options.out_dtype == at::kHalf,
              "out_dtype: expected float32, bfloat16 or float16, got ", options.out_dtype,
              "; convert the result afterwards");
  if (options.bias) check_bias(*options.bias, a, b);
  if (options.accumulate_into) {
    const at::Tensor& into = *options.accumulate_into;
    TORCH_CHECK(into.scalar_type() == options.out_dtype && into.is_contiguous() &&
                    into.sizes() == at::IntArrayRef({a.rows(), b.rows()}) &&
                    into.device() == a.data.device(),
                "accumulate_into: expected a contiguous ", options.out_dtype, " matrix ", a.rows(),
                " x ", b.rows(), " on ", a.data.device(), ", got ", into.scalar_type(), " ",
                into.sizes(), " on ", into.device(), "; give the gradient buffer of this weight");
  }
}

ScalingFamily family_of(const ScaledTensor& a, const ScaledTensor& b) {
  if (a.granularity.mx) return ScalingFamily::kMx;
  if (a.granularity.block_columns != 0) return ScalingFamily::kBlockwise;
  const bool tensorwise =
      a.granularity == Granularity::tensorwise() && b.granularity == Granularity::tensorwise();
  return tensorwise ? ScalingFamily::kTensorwise : ScalingFamily::kRowwise;
}

// The backend that runs this product on the operands' device; never kAuto.
Backend choose_backend(const ScaledTensor& a, const ScaledTensor& b, Backend asked) {
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
  const Backend own = native_product(architecture, family_of(a, b), flavour_of(a.format())).backend;
  if (asked == Backend::kAuto || asked == own) return own;
  TORCH_CHECK(asked == Backend::kEmulated || asked == Backend::kAten, "backend: ", name(asked),
              " does not multiply ", name(family_of(a, b)), " operands of flavour ",
              name(flavour_of(a.format())), " on ", architecture.name, "; auto takes ", name(own));
  TORCH_CHECK(asked != Backend::kAten || flavour_of(a.format()) == architecture.flavour,
              "backend: aten would misread ", name(a.format()), " on ", architecture.name,
              "; auto takes ", name(own));
  return asked;
}

// M, N or K zero, decided here so that no backend sees it: nothing to compute, or a sum of no
// terms.
at::Tensor trivial_product(const ScaledTensor& a, const ScaledTensor& b,
                           const MatmulOptions& options) {
  const auto sizes = {a.rows(), b.rows()};
  const auto out_options = a.data.options().dtype(options.out_dtype);
  if (a.rows() == 0 || b.rows() == 0) return at::empty(sizes, out_options);
  if (!options.bias) return at::zeros(sizes, out_options);
  return options.bias->detach().to(options.out_dtype).expand(sizes).contiguous();
}

}  // namespace

at::Tensor scaled_mm(const ScaledTensor& a, const ScaledTensor& b, const MatmulOptions& options) {
  check_product(a, b, options);
  const Backend backend = choose_backend(a, b, options.backend);
  if (a.rows() == 0 || b.rows() == 0 || a.columns() == 0) {
    const at::Tensor out = trivial_product(a, b, options);
    return options.accumulate_into ? options.accumulate_into->add_(out) : out;
  }
  switch (backend) {
    case Backend::kReference:
      return scaled_mm_reference(a, b, options);
    case Backend::kEmulated:
      return scaled_mm_emulated(a, b, options);
    case Backend::kAten:
      return scaled_mm_aten(a, b, options);
#if OCTAVO_WITH_CUDA
    case Backend::kCublasLt:
      return scaled_mm_cublaslt(a, b, options);
#endif
    default:
      TORCH_CHECK(false, "backend: this build has no ", name(backend),
                  "; build the preset cuda or use backend=emulated");
  }
}

}  // namespace octavo
