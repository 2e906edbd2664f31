// octavo::scaled_grouped_mm: the grouped products of quantised operands, for use from Python.
#include "octavo/gemm/scaled_grouped_mm.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/names.h"
#include "octavo/ops/scale_layout.h"
#include "octavo/quantize/offsets.h"

namespace octavo::ops {
namespace {

at::Tensor call_scaled_grouped_mm(const at::Tensor& a, const at::Tensor& a_scale,
                                  std::string_view a_granularity, const at::Tensor& b,
                                  const at::Tensor& b_scale, std::string_view b_granularity,
                                  const at::Tensor& ends, at::ScalarType out_dtype,
                                  bool fast_accumulation, std::string_view backend) {
  static const auto op =
      find_operator<decltype(call_scaled_grouped_mm)>("octavo::scaled_grouped_mm");
  return op.call(a, a_scale, a_granularity, b, b_scale, b_granularity, ends, out_dtype,
                 fast_accumulation, backend);
}

void check_dimensions(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && (b.dim() == 2 || b.dim() == 3),
              "scaled_grouped_mm: expected a (M, K) and b (E, N, K), or a (N, Mt) and b (K, Mt), "
              "got ",
              a.dim(), " and ", b.dim(), " dimensions");
}

at::Tensor scaled_grouped_mm_kernel(const at::Tensor& a, const at::Tensor& a_scale,
                                    std::string_view a_granularity, const at::Tensor& b,
                                    const at::Tensor& b_scale, std::string_view b_granularity,
                                    const at::Tensor& ends, at::ScalarType out_dtype,
                                    bool fast_accumulation, std::string_view backend) {
  check_dimensions(a, b);
  const ScaledTensor left = scaled_tensor("a_granularity", a, a_scale, a_granularity);
  const ScaledTensor right = scaled_tensor("b_granularity", b, b_scale, b_granularity);
  const GroupedMatmulOptions options{.out_dtype = out_dtype,
                                     .fast_accumulation = fast_accumulation,
                                     .backend = parse_backend("backend", backend)};
  return b.dim() == 3 ? scaled_grouped_mm(left, right, ends, options)
                      : scaled_grouped_mm_k(left, right, ends, options);
}

at::Tensor scaled_grouped_mm_meta(const at::Tensor& a, const at::Tensor& a_scale,
                                  std::string_view a_granularity, const at::Tensor& b,
                                  const at::Tensor& b_scale, std::string_view b_granularity,
                                  const at::Tensor& ends, at::ScalarType out_dtype, bool,
                                  std::string_view backend) {
  check_dimensions(a, b);
  check_offsets_type("ends", ends);
  check_one_device("scaled_grouped_mm", {a, a_scale, b, b_scale, ends});
  parse_granularity("a_granularity", a_granularity);
  parse_granularity("b_granularity", b_granularity);
  parse_backend("backend", backend);
  const at::TensorOptions options = a.options().dtype(out_dtype);
  if (b.dim() == 3) return at::empty_symint({a.sym_size(0), b.sym_size(1)}, options);
  return at::empty_symint({ends.sym_size(0), a.sym_size(0), b.sym_size(0)}, options);
}

at::Tensor scaled_grouped_mm_autograd(const at::Tensor& a, const at::Tensor& a_scale,
                                      std::string_view a_granularity, const at::Tensor& b,
                                      const at::Tensor& b_scale, std::string_view b_granularity,
                                      const at::Tensor& ends, at::ScalarType out_dtype,
                                      bool fast_accumulation, std::string_view backend) {
  refuse_tangents("scaled_grouped_mm", {a_scale, b_scale});
  at::Tensor out;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    out = call_scaled_grouped_mm(a, a_scale, a_granularity, b, b_scale, b_granularity, ends,
                                 out_dtype, fast_accumulation, backend);
  }
  if (requires_derivative({a, a_scale, b, b_scale})) {
    out = without_derivative("scaled_grouped_mm", out);
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CPU, m) { m.impl("scaled_grouped_mm", &scaled_grouped_mm_kernel); }
TORCH_LIBRARY_IMPL(octavo, CUDA, m) { m.impl("scaled_grouped_mm", &scaled_grouped_mm_kernel); }
TORCH_LIBRARY_IMPL(octavo, Meta, m) { m.impl("scaled_grouped_mm", &scaled_grouped_mm_meta); }
TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("scaled_grouped_mm", &scaled_grouped_mm_autograd);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("scaled_grouped_mm", &below_autocast<&call_scaled_grouped_mm>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("scaled_grouped_mm", &below_autocast<&call_scaled_grouped_mm>::call);
}

}  // namespace octavo::ops
