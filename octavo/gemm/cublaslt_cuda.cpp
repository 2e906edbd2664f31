#include <ATen/Functions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "octavo/gemm/cublaslt.h"
#include "octavo/gemm/cublaslt_plan.h"
#include "octavo/gemm/cublaslt_product.h"
#include "octavo/gemm/pad.h"
#include "octavo/kernels/gpu/repeat.h"
#include "octavo/quantize/allocate.h"
#include "octavo/quantize/architecture_of.h"

namespace octavo {
namespace {

using cublaslt::PlanKey;

constexpr std::int64_t kAlignment = 16;  // elements of K and N

// How a pair's scales are applied. A tensorwise operand beside a rowwise one counts as rowwise.
cublasLtMatmulMatrixScale_t scale_mode(const ScaledTensor& matrix, const ScaledTensor& other) {
  const Granularity& granularity = matrix.granularity;
  if (granularity == Granularity::block_1x128()) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  if (granularity == Granularity::block_128x128()) {
    return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  if (granularity == Granularity::rowwise() || other.granularity == Granularity::rowwise()) {
    return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

// Scales in the form `mode` reads, for `rows` rows of data.
at::Tensor scales_for(cublasLtMatmulMatrixScale_t mode, const ScaledTensor& matrix,
                      std::int64_t rows, cudaStream_t stream) {
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
      matrix.granularity == Granularity::tensorwise()) {
    const at::Tensor out = empty_on(matrix.scale.device(), {rows, 1}, at::kFloat);
    gpu::repeat(matrix.scale.const_data_ptr<float>(), out.mutable_data_ptr<float>(), rows, stream);
    return out;
  }
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) return row_scales(matrix, rows);
  if (mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || rows == matrix.rows()) {
    return matrix.scale;
  }
  // (rows, blocks) with strides (1, rows), the padding's scales 0.
  const at::Tensor out = at::zeros({matrix.scale.size(1), rows}, matrix.scale.options());
  out.narrow(1, 0, matrix.rows()).copy_(matrix.scale.t());
  return out.t();
}

std::atomic<int>& tuning_state() {
  static std::atomic<int> state = [] {
    const char* word = std::getenv("OCTAVO_GEMM_TUNING");
    if (word == nullptr || std::string_view(word) == "measure") return int(Tuning::kMeasure);
    TORCH_CHECK(std::string_view(word) == "heuristic",
                "OCTAVO_GEMM_TUNING: expected measure or heuristic, got '", word, "'");
    return int(Tuning::kHeuristic);
  }();
  return state;
}

// Whose algorithms plans hold: they mean nothing to another cuBLASLt, and little on another GPU.
std::string plan_maker() {
  return "cublaslt " + std::to_string(cublasLtGetVersion()) + ", " +
         product_name(c10::Device(at::kCUDA, c10::cuda::current_device()));
}

}  // namespace

Tuning cublaslt_tuning() { return static_cast<Tuning>(tuning_state().load()); }
void set_cublaslt_tuning(Tuning tuning) { tuning_state() = int(tuning); }
std::string cublaslt_plans() {
  return cublaslt::write_plans(plan_maker(), c10::cuda::current_device());
}
void use_cublaslt_plans(const std::string& text, const std::string& source) {
  cublaslt::read_plans(text, source, plan_maker(), c10::cuda::current_device());
}

at::Tensor scaled_mm_cublaslt(const ScaledTensor& a, const ScaledTensor& b,
                              const MatmulOptions& options) {
  const c10::cuda::CUDAGuard guard(a.data.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(a.data.device().index()).stream();
  const std::int64_t m = a.rows(), n = b.rows(), k = a.columns();
  PlanKey key;
  const auto a_mode = scale_mode(a, b), b_mode = scale_mode(b, a);
  const bool blocks = a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
                      b_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  // Columns of 1x128 scales begin at multiples of 16 bytes only where M is a multiple of 4.
  key.m = blocks ? round_up(m, kAlignment) : m;
  key.n = round_up(n, kAlignment);
  key.k = round_up(k, kAlignment);
  key.a_dtype = static_cast<int>(a.data.scalar_type());
  key.b_dtype = static_cast<int>(b.data.scalar_type());
  key.a_scale = a_mode;
  key.b_scale = b_mode;
  key.fast_accumulation = options.fast_accumulation && !blocks;  // block products have none
  key.accumulate = options.accumulate_into.has_value();
  key.device = a.data.device().index();

  // cuBLASLt adds a bias of the output's type (bf16 to fp32); others are added afterwards.
  const at::ScalarType fused_bias =
      options.out_dtype == at::kFloat ? at::kBFloat16 : options.out_dtype;
  const bool padded = key.n != n || key.m != m;
  const bool fuse_bias = options.bias && options.bias->scalar_type() == fused_bias &&
                         options.bias->is_contiguous() && !padded;
  const bool bias_after = options.bias && !fuse_bias;
  const at::ScalarType dtype = bias_after ? at::kFloat : options.out_dtype;
  key.out_dtype = static_cast<int>(dtype);
  key.bias_dtype = fuse_bias ? static_cast<int>(fused_bias) : -1;

  const at::Tensor a_data = padded_data(a.data, key.m, key.k),
                   b_data = padded_data(b.data, key.n, key.k);
  const at::Tensor a_scale = scales_for(a_mode, a, key.m, stream),
                   b_scale = scales_for(b_mode, b, key.n, stream);
  const bool in_place = key.accumulate && !padded && !bias_after;
  if (key.accumulate && !in_place) key.accumulate = 0;
  at::Tensor out =
      in_place ? *options.accumulate_into : empty_on(a.data.device(), {key.m, key.n}, dtype);
  const cublaslt::Pointers pointers{a_data.const_data_ptr(),
                                    b_data.const_data_ptr(),
                                    out.data_ptr(),
                                    a_scale.const_data_ptr<float>(),
                                    b_scale.const_data_ptr<float>(),
                                    fuse_bias ? options.bias->const_data_ptr() : nullptr};
  cublaslt::multiply(key, {a_data.stride(0), b_data.stride(0), out.stride(0)}, pointers, stream);

  if (padded) out = out.narrow(0, 0, m).narrow(1, 0, n);
  if (bias_after) out = out.add_(*options.bias).to(options.out_dtype);
  if (options.accumulate_into && !in_place) return options.accumulate_into->add_(out);
  return out.contiguous();
}

}  // namespace octavo
