#include "octavo/gemm/scaled_mm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "octavo/gemm/reference.h"
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
}

// The backend that runs this product on `device`; never kAuto.
Backend choose_backend(const at::Device& device, Backend asked) {
  TORCH_CHECK(device.is_cpu(), "a: expected a CPU tensor, got device ", device,
              "; this build multiplies on the CPU only, move the operands there");
  TORCH_CHECK(asked == Backend::kAuto || asked == Backend::kReference,
              "backend: expected auto or reference on the CPU, got ", name(asked),
              "; the reference backend is the one that runs on the CPU");
  return Backend::kReference;
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
  const Backend backend = choose_backend(a.data.device(), options.backend);
  if (a.rows() == 0 || b.rows() == 0 || a.columns() == 0) return trivial_product(a, b, options);
  TORCH_CHECK(backend == Backend::kReference, "backend: no implementation of ", name(backend));
  return scaled_mm_reference(a, b, options);
}

}  // namespace octavo
