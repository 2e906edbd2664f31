#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "octavo/gemm/cublaslt.h"
#include "octavo/gemm/cublaslt_plan.h"
#include "octavo/gemm/pad.h"
#include "octavo/quantize/allocate.h"

namespace octavo {
namespace {

using cublaslt::Algorithm;
using cublaslt::Plan;
using cublaslt::PlanKey;

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(Algorithm));

// What PyTorch gives cuBLASLt on Hopper; larger workspaces win nothing on the shapes measured.
constexpr std::size_t kMaxWorkspace = std::size_t{32} << 20;
constexpr int kProposals = 16;
constexpr std::int64_t kAlignment = 16;  // elements of K and N

void check(cublasStatus_t status, const char* call) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: ", call, " returned ",
              cublasLtGetStatusName(status));
}

void check(cudaError_t error, const char* call) {
  TORCH_CHECK(error == cudaSuccess, "CUDA: ", call, ": ", cudaGetErrorString(error));
}

cudaDataType_t data_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case at::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kHalf:
      return CUDA_R_16F;
    case at::kFloat:
      return CUDA_R_32F;
    default:
      TORCH_CHECK(false, "cuBLASLt: no product of dtype ", dtype,
                  "; backend=emulated multiplies every format");
  }
}

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

// cuBLASLt objects that free themselves.
class MatmulDescription {
 public:
  MatmulDescription() {
    check(cublasLtMatmulDescCreate(&handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescCreate");
  }
  ~MatmulDescription() { cublasLtMatmulDescDestroy(handle_); }
  MatmulDescription(const MatmulDescription&) = delete;
  MatmulDescription& operator=(const MatmulDescription&) = delete;
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(handle_, attribute, &value, sizeof(value)),
          "MatmulDescSetAttribute");
  }
  cublasLtMatmulDesc_t get() const { return handle_; }

 private:
  cublasLtMatmulDesc_t handle_ = nullptr;
};

class MatrixLayout {
 public:
  MatrixLayout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
    check(cublasLtMatrixLayoutCreate(&handle_, type, rows, columns, ld), "MatrixLayoutCreate");
  }
  ~MatrixLayout() { cublasLtMatrixLayoutDestroy(handle_); }
  MatrixLayout(const MatrixLayout&) = delete;
  MatrixLayout& operator=(const MatrixLayout&) = delete;
  cublasLtMatrixLayout_t get() const { return handle_; }

 private:
  cublasLtMatrixLayout_t handle_ = nullptr;
};

class Preference {
 public:
  Preference() { check(cublasLtMatmulPreferenceCreate(&handle_), "MatmulPreferenceCreate"); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    check(cublasLtMatmulPreferenceSetAttribute(handle_, attribute, &value, sizeof(value)),
          "MatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t get() const { return handle_; }

 private:
  cublasLtMatmulPreference_t handle_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&handle_), "EventCreate"); }
  ~Event() { cudaEventDestroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(handle_, stream), "EventRecord"); }
  void wait() { check(cudaEventSynchronize(handle_), "EventSynchronize"); }
  float since(const Event& earlier) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, earlier.handle_, handle_), "EventElapsedTime");
    return ms;
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

// out^T (N, M) = b (N, K) . a (M, K)^T, seen column-major: cuBLASLt's A is our b, its B our a.
class Product {
 public:
  Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const PlanKey& key,
          const float* a_scale, const float* b_scale, const void* bias)
      : a_(a),
        b_(b),
        out_(out),
        beta_(key.accumulate ? 1.0f : 0.0f),
        a_layout_(data_type(a.scalar_type()), key.k, key.m, a.stride(0)),
        b_layout_(data_type(b.scalar_type()), key.k, key.n, b.stride(0)),
        out_layout_(data_type(out.scalar_type()), key.n, key.m, out.stride(0)) {
    description_.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    description_.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    description_.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b_scale);
    description_.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_scale);
    description_.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, std::int32_t{key.b_scale});
    description_.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, std::int32_t{key.a_scale});
    set_fast_accumulation(key.fast_accumulation != 0);
    if (bias != nullptr) {
      description_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      description_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
      description_.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                       std::int32_t{data_type(static_cast<at::ScalarType>(key.bias_dtype))});
    }
  }

  void set_fast_accumulation(bool fast) {
    description_.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(fast));
    fast_accumulation_ = fast;
  }

  std::vector<Plan> proposals() const {
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
    cublasLtMatmulHeuristicResult_t results[kProposals];
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, description_.get(), b_layout_.get(), a_layout_.get(), out_layout_.get(),
        out_layout_.get(), preference.get(), kProposals, results, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check(status, "MatmulAlgoGetHeuristic");
    std::vector<Plan> plans;
    for (int i = 0; i < count; ++i) {
      if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
      Plan plan;
      std::memcpy(plan.algorithm.data(), &results[i].algo, sizeof(plan.algorithm));
      plan.workspace = results[i].workspaceSize;
      plan.fast_accumulation = fast_accumulation_;
      plans.push_back(plan);
    }
    return plans;
  }

  cublasStatus_t run(const Plan& plan, const at::Tensor& out, void* workspace,
                     cudaStream_t stream) const {
    const float alpha = 1.0f;
    cublasLtMatmulAlgo_t algorithm;
    std::memcpy(&algorithm, plan.algorithm.data(), sizeof(algorithm));
    return cublasLtMatmul(handle_, description_.get(), &alpha, b_.const_data_ptr(), b_layout_.get(),
                          a_.const_data_ptr(), a_layout_.get(), &beta_, out.data_ptr(),
                          out_layout_.get(), out.data_ptr(), out_layout_.get(), &algorithm,
                          workspace, plan.workspace, stream);
  }
  cublasStatus_t run(const Plan& plan, void* workspace, cudaStream_t stream) const {
    return run(plan, out_, workspace, stream);
  }

  // The fastest proposal by the median of a few runs each, into memory of its own where the product
  // accumulates.
  Plan measured(const std::vector<Plan>& plans, cudaStream_t stream) const {
    constexpr int kRuns = 7;
    const at::Tensor target = beta_ == 0.0f ? out_ : at::zeros_like(out_);
    const at::Tensor workspace = workspace_of(kMaxWorkspace);
    float best = 0;
    const Plan* fastest = nullptr;
    for (const Plan& plan : plans) {
      bool works = true;
      std::vector<float> times;
      for (int i = 0; i < kRuns && works; ++i) {
        Event begin, end;
        begin.record(stream);
        works = run(plan, target, workspace.data_ptr(), stream) == CUBLAS_STATUS_SUCCESS;
        end.record(stream);
        end.wait();
        if (i > 1) times.push_back(end.since(begin));
      }
      if (!works) continue;
      std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
      const float median = times[times.size() / 2];
      if (fastest == nullptr || median < best) {
        best = median;
        fastest = &plan;
      }
    }
    TORCH_CHECK(fastest != nullptr, "cuBLASLt: none of its ", plans.size(),
                " proposed algorithms ran; use backend=emulated");
    return *fastest;
  }

  at::Tensor workspace_of(std::size_t bytes) const {
    return empty_on(out_.device(), {static_cast<std::int64_t>(bytes)}, at::kByte);
  }

 private:
  at::Tensor a_, b_, out_;
  float beta_;
  bool fast_accumulation_ = false;
  cublasLtHandle_t handle_ = at::cuda::getCurrentCUDABlasLtHandle();
  MatmulDescription description_;
  MatrixLayout a_layout_, b_layout_, out_layout_;
};

Plan choose(Product& product, const PlanKey& key, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "StreamIsCapturing");
  const bool measures = cublaslt_tuning() == Tuning::kMeasure;
  TORCH_CHECK(
      capture == cudaStreamCaptureStatusNone || !measures, "scaled_mm: the product ", key.m, " x ",
      key.n, " x ", key.k,
      " has no chosen algorithm yet and measuring is impossible while a CUDA graph is being "
      "captured; run one step before the capture");
  std::vector<Plan> plans = product.proposals();
  if (plans.empty() && key.fast_accumulation) {
    // Fast accumulation is a permission: cuBLASLt 13.0 lacks it for rowwise products of long K and
    // few tiles, and has full accumulation for them.
    product.set_fast_accumulation(false);
    plans = product.proposals();
  }
  TORCH_CHECK(!plans.empty(), "cuBLASLt: no algorithm for out ", key.m, " x ", key.n, ", K ", key.k,
              ", scale modes ", key.a_scale, " and ", key.b_scale,
              " on this GPU; use backend=emulated");
  return measures && plans.size() > 1 ? product.measured(plans, stream) : plans.front();
}

// Scales in the form `mode` reads, for `rows` rows of data.
at::Tensor scales_for(cublasLtMatmulMatrixScale_t mode, const ScaledTensor& matrix,
                      std::int64_t rows) {
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

}  // namespace

Tuning cublaslt_tuning() { return static_cast<Tuning>(tuning_state().load()); }
void set_cublaslt_tuning(Tuning tuning) { tuning_state() = int(tuning); }
void save_cublaslt_plans(const std::string& path) {
  cublaslt::write_plans(path, cublasLtGetVersion());
}
void load_cublaslt_plans(const std::string& path) {
  cublaslt::read_plans(path, cublasLtGetVersion());
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
  key.a_format = static_cast<int>(a.format());
  key.b_format = static_cast<int>(b.format());
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
  const at::Tensor a_scale = scales_for(a_mode, a, key.m), b_scale = scales_for(b_mode, b, key.n);
  const bool in_place = key.accumulate && !padded && !bias_after;
  if (key.accumulate && !in_place) key.accumulate = 0;
  at::Tensor out =
      in_place ? *options.accumulate_into : empty_on(a.data.device(), {key.m, key.n}, dtype);
  Product product(a_data, b_data, out, key, a_scale.const_data_ptr<float>(),
                  b_scale.const_data_ptr<float>(),
                  fuse_bias ? options.bias->const_data_ptr() : nullptr);
  std::optional<Plan> plan = cublaslt::find_plan(key);
  if (!plan) {
    plan = choose(product, key, stream);
    cublaslt::keep_plan(key, *plan);
  }
  product.set_fast_accumulation(plan->fast_accumulation);
  const at::Tensor workspace =
      plan->workspace == 0 ? at::Tensor() : product.workspace_of(plan->workspace);
  check(product.run(*plan, plan->workspace == 0 ? nullptr : workspace.data_ptr(), stream),
        "Matmul");

  if (padded) out = out.narrow(0, 0, m).narrow(1, 0, n);
  if (bias_after) out = out.add_(*options.bias).to(options.out_dtype);
  if (options.accumulate_into && !in_place) return options.accumulate_into->add_(out);
  return out.contiguous();
}

}  // namespace octavo
