#include "octavo/gemm/scaled_mm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "octavo/gemm/aten.h"
#include "octavo/gemm/cublaslt.h"
#include "octavo/gemm/emulated.h"
#include "octavo/gemm/product.h"
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
  check_out_dtype(options.out_dtype);
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
  const Backend backend = choose_backend(a, b, options.backend, &native_product);
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
