#include "octavo/gemm/scaled_grouped_mm.h"

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "octavo/gemm/grouped_backends.h"
#include "octavo/gemm/product.h"
#include "octavo/quantize/check.h"
#include "octavo/quantize/offsets.h"

namespace octavo {
namespace {

void check_together(const ScaledTensor& a, const ScaledTensor& b, bool supported,
                    const char* pairs) {
  TORCH_CHECK(a.columns() == b.columns(), "a and b: expected equal numbers of columns, got a ",
              at::IntArrayRef(a.logical_sizes), " and b ", at::IntArrayRef(b.logical_sizes),
              "; both operands are contiguous along the contraction");
  TORCH_CHECK(a.data.device() == b.data.device(), "b: expected device ", a.data.device(),
              " as a, got ", b.data.device(), "; move one of them first");
  check_formats(a, b);
  TORCH_CHECK(supported, "a and b: expected granularities ", pairs, ", got ",
              to_string(a.granularity), " and ", to_string(b.granularity),
              "; quantise both operands by the same recipe");
}

bool pairs_with_weights(const Granularity& a, const Granularity& b) {
  if (a == Granularity::rowwise()) {
    return b == Granularity::rowwise() || b == Granularity::tensorwise();
  }
  if (a == Granularity::block_1x128()) return b == Granularity::block_128x128();
  return a == Granularity::mx_1x32() && b == a;
}

bool pairs_by_columns(const Granularity& a, const Granularity& b) {
  return a == b && (a == Granularity::rowwise() || a == Granularity::block_1x128() || a.mx);
}

// A transposed layout by groups: a matrix whose scales are blocks of it, or (E, rows) of them.
void check_grouped_columns(const ScaledTensor& matrix, const char* argument, std::int64_t experts) {
  check_scale_layout(matrix, argument);
  ScaledTensor checked = matrix;
  if (matrix.granularity == Granularity::rowwise()) {
    TORCH_CHECK(matrix.scale.defined() && matrix.scale.dim() == 2 &&
                    matrix.scale.size(0) == experts && matrix.scale.is_contiguous(),
                argument, ".scale: expected contiguous (E, rows) with E = ", experts,
                " groups, got ", matrix.scale.defined() ? matrix.scale.sizes() : at::IntArrayRef(),
                "; quantise the operand with quantize_grouped_operand()");
    checked.scale = matrix.scale.select(0, 0).unsqueeze(1);
  }
  check_scaled_tensor(checked, argument);
  TORCH_CHECK(matrix.columns() % 16 == 0, argument, ": expected columns in a multiple of 16, got ",
              matrix.columns(), "; quantise the operand with quantize_grouped_operand()");
}

// CPU: the aligned ends begin blocks.
void check_alignment(const at::Tensor& offs_transposed, const Granularity& granularity) {
  if (!offs_transposed.is_cpu()) return;
  const std::int64_t alignment = group_alignment(granularity);
  for (const Group& group : groups_of(offs_transposed, 1)) {
    TORCH_CHECK(group.end % alignment == 0, "offs_transposed: expected aligned ends, multiples of ",
                alignment, " for ", to_string(granularity), ", got ", group.end,
                "; pass the offs_transposed quantize_grouped_operand() gave");
  }
}

constexpr std::int64_t kMostGroups = 512;  // of our own kernels

Backend backend_of(const ScaledTensor& a, const ScaledTensor& b, std::int64_t experts,
                   const GroupedMatmulOptions& options) {
  // What at::_grouped_mm emulates runs on the CPU too.
  if (a.data.is_cpu() && options.backend == Backend::kEmulated) return Backend::kEmulated;
  const Backend backend = choose_backend(a, b, options.backend, &native_grouped_product);
  const bool aten_can =
      a.granularity.block_columns == 0 ||
      choose_backend(a, b, Backend::kAuto, &native_grouped_product) == Backend::kAten;
  TORCH_CHECK(backend != Backend::kAten || aten_can,
              "backend: aten multiplies rowwise operands by groups, and MX ones on SM100, got ",
              to_string(a.granularity), " and ", to_string(b.granularity),
              "; use backend=auto or backend=emulated");
  const bool own_can =
      a.format() == Format::kE4M3FN && b.format() == Format::kE4M3FN && experts <= kMostGroups;
  if (backend != Backend::kOctavo || own_can) return backend;
  TORCH_CHECK(options.backend == Backend::kAuto,
              "backend: octavo multiplies e4m3fn operands of up ", "to ", kMostGroups,
              " groups, got ", name(a.format()), ", ", name(b.format()), " and ", experts,
              " groups; auto emulates them");
  return Backend::kEmulated;
}

[[noreturn]] void no_such_backend(Backend backend) {
  TORCH_CHECK(false, "backend: ", name(backend),
              " has no grouped products; use auto, octavo, aten or emulated");
}

// GPUs: what bad offsets become, [previous end, rows] each. The CPU's were checked.
at::Tensor clamped(const at::Tensor& offs, std::int64_t rows) {
  if (offs.is_cpu()) return offs;
  return std::get<0>(at::cummax(offs.clamp(0, rows), 0));
}

void check_accumulate_into(const at::Tensor& into, const ScaledTensor& a, const ScaledTensor& b,
                           std::int64_t experts, const GroupedMatmulOptions& options) {
  TORCH_CHECK(into.scalar_type() == options.out_dtype && into.is_contiguous() &&
                  into.sizes() == at::IntArrayRef({experts, a.rows(), b.rows()}) &&
                  into.device() == a.data.device(),
              "accumulate_into: expected a contiguous ", options.out_dtype, " tensor ", experts,
              " x ", a.rows(), " x ", b.rows(), " on ", a.data.device(), ", got ",
              into.scalar_type(), " ", into.sizes(), " on ", into.device(),
              "; give the gradient buffer of these weights");
}

// scaled_grouped_mm_k() after its checks; options.accumulate_into itself where the backend added to
// it.
at::Tensor weight_gradient(const ScaledTensor& a, const ScaledTensor& b, const at::Tensor& ends,
                           const GroupedMatmulOptions& options, Backend backend) {
  if (a.rows() == 0 || b.rows() == 0 || a.columns() == 0) {
    return at::zeros({ends.size(0), a.rows(), b.rows()}, a.data.options().dtype(options.out_dtype));
  }
  switch (backend) {
    case Backend::kReference:
      return grouped_mm_k_reference(a, b, ends, options);
    case Backend::kEmulated:
      return grouped_mm_k_emulated(a, b, clamped(ends, a.columns()), options);
    case Backend::kAten:
      return grouped_mm_k_native(a, b, clamped(ends, a.columns()), options, backend);
    case Backend::kOctavo:
      return grouped_mm_k_native(a, b, ends, options, backend);
    default:
      no_such_backend(backend);
  }
}

}  // namespace

at::Tensor scaled_grouped_mm(const ScaledTensor& a, const ScaledTensor& b, const at::Tensor& offs,
                             const GroupedMatmulOptions& options) {
  check_scaled_tensor(a, "a");
  check_expert_weights(b, "b");
  check_scale_layout(a, "a");
  check_scale_layout(b, "b");
  check_together(a, b, pairs_with_weights(a.granularity, b.granularity),
                 "rowwise with rowwise or tensorwise, 1x128 with 128x128, or mx1x32 with mx1x32");
  check_out_dtype(options.out_dtype);
  check_offsets("offs", offs, b.data.size(0), a.rows(), a.data.device());
  const Backend backend = backend_of(a, b, b.data.size(0), options);
  if (a.rows() == 0 || b.rows() == 0 || a.columns() == 0) {
    return at::zeros({a.rows(), b.rows()}, a.data.options().dtype(options.out_dtype));
  }
  switch (backend) {
    case Backend::kReference:
      return grouped_mm_reference(a, b, offs, options);
    case Backend::kEmulated:
      return grouped_mm_emulated(a, b, clamped(offs, a.rows()), options);
    case Backend::kAten:
      return grouped_mm_native(a, b, clamped(offs, a.rows()), options, backend);
    case Backend::kOctavo:
      return grouped_mm_native(a, b, offs, options, backend);
    default:
      no_such_backend(backend);
  }
}

at::Tensor scaled_grouped_mm_k(const ScaledTensor& a, const ScaledTensor& b,
                               const at::Tensor& offs_transposed,
                               const GroupedMatmulOptions& options) {
  check_offsets_type("offs_transposed", offs_transposed);
  const std::int64_t experts = offs_transposed.size(0);
  TORCH_CHECK(experts >= 1, "offs_transposed: expected one END offset for each of one or more ",
              "groups, got none; pass the offs_transposed quantize_grouped_operand() gave");
  check_grouped_columns(a, "a", experts);
  check_grouped_columns(b, "b", experts);
  check_together(a, b, pairs_by_columns(a.granularity, b.granularity),
                 "rowwise, 1x128 or mx1x32, the same for both");
  check_out_dtype(options.out_dtype);
  check_offsets("offs_transposed", offs_transposed, experts, a.columns(), a.data.device());
  check_alignment(offs_transposed, a.granularity);
  if (options.accumulate_into)
    check_accumulate_into(*options.accumulate_into, a, b, experts, options);
  const Backend backend = backend_of(a, b, experts, options);
  const at::Tensor out = weight_gradient(a, b, offs_transposed, options, backend);
  if (!options.accumulate_into || out.is_same(*options.accumulate_into)) return out;
  return options.accumulate_into->add_(out);
}

at::Tensor grouped_mm_k(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offs,
                        at::ScalarType out_dtype) {
  TORCH_CHECK(dy.dim() == 2 && x.dim() == 2 && dy.size(0) == x.size(0),
              "dy and x: expected (M, N) and (M, K), got ", dy.sizes(), " and ", x.sizes(),
              "; their rows are the same tokens");
  check_out_dtype(out_dtype);
  check_offsets("offs", offs, /*experts=*/-1, x.size(0), x.device());
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  const std::int64_t experts = offs.size(0), n = dy.size(1), k = x.size(1);
  if (x.numel() == 0 || dy.numel() == 0) {
    return at::zeros({experts, n, k}, dy.options().dtype(out_dtype));
  }
  if (dy.is_cpu()) {
    at::Tensor out = at::empty({experts, n, k}, dy.options().dtype(out_dtype));
    std::int64_t g = 0;
    for (const Group& group : groups_of(offs, 1)) {
      const at::Tensor dy_g = dy.narrow(0, group.begin, group.size());
      out.select(0, g++).copy_(at::mm(dy_g.t(), x.narrow(0, group.begin, group.size())));
    }
    return out;
  }
  const at::Tensor ends = clamped(offs, x.size(0));
  const auto bf16 = [](const at::Tensor& t) {
    const at::Tensor even = t.to(at::kBFloat16);
    const std::int64_t columns = even.size(1), padded = (columns + 7) / 8 * 8;
    if (padded == columns && even.is_contiguous()) return even;
    return at::constant_pad_nd(even, {0, padded - columns}).contiguous();
  };
  at::Tensor out = at::_grouped_mm(bf16(dy).t(), bf16(x), ends);
  if (out.size(1) != n || out.size(2) != k) out = out.narrow(1, 0, n).narrow(2, 0, k).contiguous();
  zero_empty_groups(out, ends);
  return out.to(out_dtype);
}

}  // namespace octavo
