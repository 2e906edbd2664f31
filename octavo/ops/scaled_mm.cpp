// octavo::scaled_mm: the product of two quantised matrices, for use from Python.
#include "octavo/gemm/scaled_mm.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/names.h"
#include "octavo/ops/scale_layout.h"

namespace octavo::ops {
namespace {

at::Tensor call_scaled_mm(const at::Tensor& a, const at::Tensor& a_scale,
                          std::string_view a_granularity, const at::Tensor& b,
                          const at::Tensor& b_scale, std::string_view b_granularity,
                          const std::optional<at::Tensor>& bias, at::ScalarType out_dtype,
                          bool fast_accumulation, std::string_view backend) {
  static const auto op = find_operator<decltype(call_scaled_mm)>("octavo::scaled_mm");
  return op.call(a, a_scale, a_granularity, b, b_scale, b_granularity, bias, out_dtype,
                 fast_accumulation, backend);
}

ScaledTensor checked_matrix(const char* argument, const at::Tensor& data, const at::Tensor& scale,
                            std::string_view granularity) {
  TORCH_CHECK(data.dim() == 2, argument, ": expected a matrix of FP8 data, got ", data.dim(),
              " dimensions");
  return scaled_tensor(argument, data, scale, granularity);
}

at::Tensor scaled_mm_kernel(const at::Tensor& a, const at::Tensor& a_scale,
                            std::string_view a_granularity, const at::Tensor& b,
                            const at::Tensor& b_scale, std::string_view b_granularity,
                            const std::optional<at::Tensor>& bias, at::ScalarType out_dtype,
                            bool fast_accumulation, std::string_view backend) {
  return scaled_mm(checked_matrix("a_granularity", a, a_scale, a_granularity),
                   checked_matrix("b_granularity", b, b_scale, b_granularity),
                   {.out_dtype = out_dtype,
                    .bias = bias,
                    .fast_accumulation = fast_accumulation,
                    .backend = parse_backend("backend", backend)});
}

at::Tensor scaled_mm_meta(const at::Tensor& a, const at::Tensor& a_scale,
                          std::string_view a_granularity, const at::Tensor& b,
                          const at::Tensor& b_scale, std::string_view b_granularity,
                          const std::optional<at::Tensor>& bias, at::ScalarType out_dtype, bool,
                          std::string_view backend) {
  check_one_device("scaled_mm", {a, a_scale, b, b_scale, bias.value_or(at::Tensor())});
  parse_granularity("a_granularity", a_granularity);
  parse_granularity("b_granularity", b_granularity);
  parse_backend("backend", backend);
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2,
              "scaled_mm: a (M, K) and b (N, K) must be matrices, got ", a.dim(), " and ", b.dim(),
              " dimensions");
  return at::empty_symint({a.sym_size(0), b.sym_size(0)}, a.options().dtype(out_dtype));
}

at::Tensor scaled_mm_autograd(const at::Tensor& a, const at::Tensor& a_scale,
                              std::string_view a_granularity, const at::Tensor& b,
                              const at::Tensor& b_scale, std::string_view b_granularity,
                              const std::optional<at::Tensor>& bias, at::ScalarType out_dtype,
                              bool fast_accumulation, std::string_view backend) {
  refuse_tangents("scaled_mm", {a_scale, b_scale, bias.value_or(at::Tensor())});
  at::Tensor out;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    out = call_scaled_mm(a, a_scale, a_granularity, b, b_scale, b_granularity, bias, out_dtype,
                         fast_accumulation, backend);
  }
  if (requires_derivative({a, a_scale, b, b_scale, bias.value_or(at::Tensor())})) {
    out = without_derivative("scaled_mm", out);
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CPU, m) { m.impl("scaled_mm", &scaled_mm_kernel); }
TORCH_LIBRARY_IMPL(octavo, CUDA, m) { m.impl("scaled_mm", &scaled_mm_kernel); }
TORCH_LIBRARY_IMPL(octavo, Meta, m) { m.impl("scaled_mm", &scaled_mm_meta); }
TORCH_LIBRARY_IMPL(octavo, Autograd, m) { m.impl("scaled_mm", &scaled_mm_autograd); }
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("scaled_mm", &below_autocast<&call_scaled_mm>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("scaled_mm", &below_autocast<&call_scaled_mm>::call);
}

}  // namespace octavo::ops
