#include "octavo/gemm/aten.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "octavo/gemm/pad.h"

namespace octavo {

at::Tensor scaled_mm_aten(const ScaledTensor& a, const ScaledTensor& b,
                          const MatmulOptions& options) {
  TORCH_CHECK(a.granularity.block_columns == 0 && b.granularity.block_columns == 0,
              "backend: aten multiplies tensorwise and rowwise operands, got ",
              to_string(a.granularity), " and ", to_string(b.granularity),
              "; use backend=cublaslt on Hopper or backend=emulated");
  const bool tensorwise =
      a.granularity == Granularity::tensorwise() && b.granularity == Granularity::tensorwise();
  const std::int64_t n = b.rows(), k = round_up(a.columns(), 16), padded_n = round_up(n, 16);
  const at::Tensor a_data = padded_data(a.data, a.rows(), k),
                   b_data = padded_data(b.data, padded_n, k);
  const at::Tensor a_scale = tensorwise ? a.scale : row_scales(a, a.rows());
  const at::Tensor b_scale = tensorwise ? b.scale : row_scales(b, padded_n).t();
  const bool fused_bias =
      options.bias && options.bias->scalar_type() == at::kBFloat16 && padded_n == n;
  at::Tensor out =
      at::_scaled_mm(a_data, b_data.t(), a_scale, b_scale, fused_bias ? options.bias : std::nullopt,
                     std::nullopt, at::kBFloat16, options.fast_accumulation);
  if (padded_n != n) out = out.narrow(1, 0, n);
  if (options.bias && !fused_bias) out = out.to(at::kFloat).add_(*options.bias);
  if (options.accumulate_into) return options.accumulate_into->add_(out);
  return out.to(options.out_dtype).contiguous();
}

}  // namespace octavo
