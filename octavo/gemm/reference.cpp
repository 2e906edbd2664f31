#include "octavo/gemm/reference.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "octavo/gemm/full_precision.h"
#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/epilogue.h"
#include "octavo/quantize/dequantize.h"
#include "octavo/quantize/split.h"

namespace octavo {
namespace {

using kernels::EpilogueArgs;
using kernels::HighPrecision;

// (M, N) = a32 (M, K) . b32 (N, K)^T in fp32, whatever autocast, autograd and precision settings
// the caller runs under.
at::Tensor mm_nt(const at::Tensor& a32, const at::Tensor& b32) {
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  const FullPrecisionGuard precision(at::Float32Backend::MKLDNN);
  return at::mm(a32, b32.t());
}

// The bias as fp32, by hand: N elements, and a dispatcher copy here would look like a copy of an
// operand to whoever counts them.
at::Tensor bias_as_float(const at::Tensor& bias) {
  if (bias.scalar_type() == at::kFloat && bias.is_contiguous()) return bias;
  const std::int64_t n = bias.size(0), stride = bias.stride(0);
  at::Tensor out = at::empty({n}, bias.options().dtype(at::kFloat));
  float* to = out.mutable_data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, bias.scalar_type(), "bias", [&] {
    const scalar_t* from = bias.const_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i * stride]);
  });
  return out;
}

HighPrecision out_type_of(at::ScalarType dtype) {
  if (dtype == at::kFloat) return HighPrecision::kFloat32;
  return dtype == at::kBFloat16 ? HighPrecision::kBFloat16 : HighPrecision::kFloat16;
}

}  // namespace

at::Tensor scaled_mm_reference(const ScaledTensor& a, const ScaledTensor& b,
                               const MatmulOptions& options) {
  const bool scale_after = a.granularity.block_columns == 0 && b.granularity.block_columns == 0;
  at::Tensor acc;
  if (scale_after) {
    acc = mm_nt(decode_unscaled(a), decode_unscaled(b));
  } else {
    acc = mm_nt(dequantize(a), dequantize(b));
  }
  const bool to_float = options.out_dtype == at::kFloat;
  const auto finished = [&](const at::Tensor& out) {
    return options.accumulate_into ? options.accumulate_into->add_(out) : out;
  };
  if (!scale_after && to_float && !options.bias) return finished(acc);

  const std::int64_t m = acc.size(0), n = acc.size(1);
  const at::Tensor bias = options.bias ? bias_as_float(*options.bias) : at::Tensor();
  const at::Tensor out = to_float ? acc : at::empty({m, n}, acc.options().dtype(options.out_dtype));
  static constexpr float kOne = 1.0f;
  EpilogueArgs args{
      .acc = acc.const_data_ptr<float>(),
      .columns = n,
      .scale_a = &kOne,
      .scale_b = &kOne,
      .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
      .out = out.mutable_data_ptr(),
      .out_type = out_type_of(options.out_dtype),
  };
  if (scale_after) {
    args.scale_a = a.scale.const_data_ptr<float>();
    args.scale_a_stride = a.granularity.block_rows;  // 0: one scale for all rows
    args.scale_b = b.scale.const_data_ptr<float>();
    args.scale_b_stride = b.granularity.block_rows;
  }
  ++kernels::counters().epilogue;
  at::parallel_for(0, m, grain(n), [&](std::int64_t begin, std::int64_t end) {
    kernels::epilogue_rows(args, begin, end);
  });
  return finished(out);
}

}  // namespace octavo
