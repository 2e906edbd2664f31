#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <vector>

#include "octavo/gemm/grouped_backends.h"
#include "octavo/gemm/pad.h"
#include "octavo/gemm/tiled_scales.h"

namespace octavo {
namespace {

// `tensor` with zeros appended up to `size` along `dim`; itself where it has that size.
at::Tensor padded_to(const at::Tensor& tensor, std::int64_t dim, std::int64_t size) {
  if (tensor.size(dim) == size) return tensor;
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size;
  const bool fp8 = tensor.element_size() == 1;
  const at::Tensor from = fp8 ? tensor.view(at::kByte) : tensor;
  const at::Tensor out = at::zeros(sizes, from.options());
  out.narrow(dim, 0, tensor.size(dim)).copy_(from);
  return fp8 ? out.view(tensor.scalar_type()) : out;
}

// Weights' row scales (E, N): a tensor scale repeated.
at::Tensor expert_row_scales(const ScaledTensor& b) {
  const std::int64_t experts = b.data.size(0), n = b.rows();
  return b.scale.expand({experts, n, 1}).reshape({experts, n});
}

at::Tensor aten_product(const NativeOperands& in) {
  return at::_scaled_grouped_mm(in.a, in.b.transpose(-1, -2), in.a_scale.flatten(),
                                in.b.dim() == 3 ? in.b_scale : in.b_scale.flatten(), in.offs,
                                /*bias=*/std::nullopt, /*scale_result=*/std::nullopt, at::kBFloat16,
                                in.fast_accumulation);
}

// MX by at::_scaled_grouped_mm: Blackwell's tiles of scales, made by torch's operators.
at::Tensor aten_mx_product(const NativeOperands& in) {
  const bool by_rows = in.b.dim() == 3;
  const at::Tensor blocks = at::floor_divide(in.offs, at::Scalar(32)).to(at::kInt);
  return at::_scaled_grouped_mm(
      in.a, in.b.transpose(-1, -2),
      by_rows ? tiled_scales_by_rows(in.a_scale, in.offs)
              : tiled_scales_by_columns(in.a_scale, blocks),
      by_rows ? tiled_scales_of_experts(in.b_scale) : tiled_scales_by_columns(in.b_scale, blocks),
      in.offs, /*bias=*/std::nullopt, /*scale_result=*/std::nullopt, at::kBFloat16);
}

at::Tensor native_product_of(const NativeOperands& in, Backend backend,
                             [[maybe_unused]] const at::Tensor& accumulate_into = {}) {
  if (backend == Backend::kAten) return in.blocks ? aten_mx_product(in) : aten_product(in);
#if OCTAVO_WITH_CUDA
  return in.b.dim() == 3 ? grouped_gemm_rows_cuda(in) : grouped_gemm_k_cuda(in, accumulate_into);
#else
  TORCH_CHECK(false, "backend: this build has no ", name(backend),
              " products; build the preset cuda or use backend=emulated");
#endif
}

}  // namespace

at::Tensor grouped_mm_native(const ScaledTensor& a, const ScaledTensor& b, const at::Tensor& offs,
                             const GroupedMatmulOptions& options, Backend backend) {
  const std::int64_t n = b.rows();
  const std::int64_t alignment = a.granularity.mx ? 32 : 16;
  const std::int64_t padded_n = round_up(n, 16), padded_k = round_up(a.columns(), alignment);
  const bool blocks = a.granularity.block_columns != 0;
  at::Tensor out =
      native_product_of({.a = padded_to(a.data, 1, padded_k),
                         .b = padded_to(padded_to(b.data, 2, padded_k), 1, padded_n),
                         .a_scale = a.scale,
                         .b_scale = blocks ? b.scale : padded_to(expert_row_scales(b), 1, padded_n),
                         .offs = offs,
                         .fast_accumulation = options.fast_accumulation,
                         .blocks = blocks},
                        backend);
  if (padded_n != n) out = out.narrow(1, 0, n).contiguous();
  if (backend == Backend::kAten) zero_rows_past(out, offs);
  return out.to(options.out_dtype);
}

at::Tensor grouped_mm_k_native(const ScaledTensor& a, const ScaledTensor& b,
                               const at::Tensor& offs_transposed,
                               const GroupedMatmulOptions& options, Backend backend) {
  const std::int64_t n = a.rows(), k = b.rows();
  const std::int64_t padded_n = round_up(n, 16), padded_k = round_up(k, 16);
  const bool padded = padded_n != n || padded_k != k, blocks = a.granularity.block_columns != 0;
  const auto scale_of = [&](const ScaledTensor& matrix, std::int64_t rows) {
    return blocks ? padded_to(matrix.scale.t(), 1, rows).t() : padded_to(matrix.scale, 1, rows);
  };
  const bool adds_inside = options.accumulate_into && !padded && backend == Backend::kOctavo &&
                           options.out_dtype == at::kBFloat16;
  at::Tensor out =
      native_product_of({.a = padded_to(a.data, 0, padded_n),
                         .b = padded_to(b.data, 0, padded_k),
                         .a_scale = scale_of(a, padded_n),
                         .b_scale = scale_of(b, padded_k),
                         .offs = offs_transposed,
                         .fast_accumulation = options.fast_accumulation,
                         .blocks = blocks},
                        backend, adds_inside ? *options.accumulate_into : at::Tensor());
  if (adds_inside) return out;
  if (padded) out = out.narrow(1, 0, n).narrow(2, 0, k).contiguous();
  if (backend == Backend::kAten) zero_empty_groups(out, offs_transposed);
  return out.to(options.out_dtype);
}

}  // namespace octavo
