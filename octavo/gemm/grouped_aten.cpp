#include <ATen/Functions.h>

#include "octavo/gemm/grouped_backends.h"
#include "octavo/gemm/pad.h"

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

at::Tensor grouped_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scale,
                           const at::Tensor& b_scale, const at::Tensor& offs,
                           const GroupedMatmulOptions& options) {
  return at::_scaled_grouped_mm(a, b, a_scale, b_scale, offs, /*bias=*/std::nullopt,
                                /*scale_result=*/std::nullopt, at::kBFloat16,
                                options.fast_accumulation);
}

}  // namespace

at::Tensor grouped_mm_aten(const ScaledTensor& a, const ScaledTensor& b, const at::Tensor& offs,
                           const GroupedMatmulOptions& options) {
  const std::int64_t experts = offs.size(0), n = b.rows();
  const std::int64_t padded_n = round_up(n, 16), padded_k = round_up(a.columns(), 16);
  const at::Tensor b_scale =
      padded_to(b.scale.expand({experts, b.granularity.block_rows == 0 ? n : b.scale.size(1), 1})
                    .reshape({experts, n}),
                1, padded_n);
  const at::Tensor weights = padded_to(padded_to(b.data, 2, padded_k), 1, padded_n);
  at::Tensor out =
      grouped_product(padded_to(a.data, 1, padded_k), weights.transpose(1, 2),
                      a.scale.reshape({a.rows()}), b_scale.contiguous(), offs, options);
  if (padded_n != n) out = out.narrow(1, 0, n).contiguous();
  zero_rows_past(out, offs);
  return out.to(options.out_dtype);
}

at::Tensor grouped_mm_k_aten(const ScaledTensor& a, const ScaledTensor& b,
                             const at::Tensor& offs_transposed,
                             const GroupedMatmulOptions& options) {
  const std::int64_t n = a.rows(), k = b.rows();
  const std::int64_t padded_n = round_up(n, 16), padded_k = round_up(k, 16);
  at::Tensor out =
      grouped_product(padded_to(a.data, 0, padded_n), padded_to(b.data, 0, padded_k).t(),
                      padded_to(a.scale, 1, padded_n).flatten(),
                      padded_to(b.scale, 1, padded_k).flatten(), offs_transposed, options);
  if (padded_n != n || padded_k != k) {
    out = out.narrow(1, 0, n).narrow(2, 0, k).contiguous();
  }
  zero_empty_groups(out, offs_transposed);
  return out.to(options.out_dtype);
}

}  // namespace octavo
