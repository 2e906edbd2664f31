#include "octavo/gemm/cublaslt_product.h"

#include <ATen/cuda/CUDAContextLight.h>

#include <cstring>
#include <map>
#include <tuple>
#include <utility>

namespace octavo::cublaslt {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(Algorithm));

constexpr int kProposals = 16;

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

// Of an operand (rows, k), seen column-major.
MatrixLayout layout_of(int dtype, std::int64_t rows, std::int64_t k, int transposed,
                       std::int64_t stride) {
  return {data_type(static_cast<at::ScalarType>(dtype)), transposed ? rows : k,
          transposed ? k : rows, stride};
}

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

}  // namespace

void check(cublasStatus_t status, const char* call) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: ", call, " returned ",
              cublasLtGetStatusName(status));
}

void check(cudaError_t error, const char* call) {
  TORCH_CHECK(error == cudaSuccess, "CUDA: ", call, ": ", cudaGetErrorString(error));
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "StreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

Product::Product(const PlanKey& key, const Strides& strides)
    : key_(key),
      handle_(at::cuda::getCurrentCUDABlasLtHandle()),
      a_layout_(layout_of(key.a_dtype, key.m, key.k, key.a_transposed, strides.a)),
      b_layout_(layout_of(key.b_dtype, key.n, key.k, key.b_transposed, strides.b)),
      out_layout_(data_type(static_cast<at::ScalarType>(key.out_dtype)), key.n, key.m,
                  strides.out) {
  description_.set(CUBLASLT_MATMUL_DESC_TRANSA, key.b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T);
  description_.set(CUBLASLT_MATMUL_DESC_TRANSB, key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (scaled()) {
    description_.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, std::int32_t{key.b_scale});
    description_.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, std::int32_t{key.a_scale});
  }
  set_fast_accumulation(key.fast_accumulation != 0);
  if (key.bias_dtype >= 0) {
    description_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    description_.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                     std::int32_t{data_type(static_cast<at::ScalarType>(key.bias_dtype))});
  }
}

void Product::set_pointers(const Pointers& pointers) {
  pointers_ = pointers;
  if (scaled()) {
    description_.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_scale);
    description_.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.a_scale);
  }
  if (pointers.bias != nullptr) {
    description_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias);
  }
}

void Product::set_fast_accumulation(bool fast) {
  if (fast_accumulation_ == fast) return;
  description_.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(fast));
  fast_accumulation_ = fast;
}

std::vector<Plan> Product::proposals() const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
  if (!scaled()) {
    // Parts of K are added in fp32, and views begin and step at multiples of 16 bytes.
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto alignment :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      preference.set(alignment, std::uint32_t{16});
    }
  }
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

bool Product::takes(const Plan& plan) const {
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, plan.algorithm.data(), sizeof(algorithm));
  cublasLtMatmulHeuristicResult_t result;
  return cublasLtMatmulAlgoCheck(handle_, description_.get(), b_layout_.get(), a_layout_.get(),
                                 out_layout_.get(), out_layout_.get(), &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= plan.workspace;
}

cublasStatus_t Product::run(const Plan& plan, void* workspace, cudaStream_t stream) const {
  const float alpha = 1.0f, beta = key_.accumulate ? 1.0f : 0.0f;
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, plan.algorithm.data(), sizeof(algorithm));
  return cublasLtMatmul(handle_, description_.get(), &alpha, pointers_.b, b_layout_.get(),
                        pointers_.a, a_layout_.get(), &beta, pointers_.out, out_layout_.get(),
                        pointers_.out, out_layout_.get(), &algorithm, workspace, plan.workspace,
                        stream);
}

// This thread's description of a product: making one anew costs as much as a launch.
Product& product_of(const PlanKey& key, const Strides& strides) {
  thread_local std::map<std::pair<PlanKey, Strides>, Product> known;
  constexpr std::size_t kMost = 4096;  // shapes that change with every step must not pile up
  const auto found = known.find({key, strides});
  if (found != known.end()) return found->second;
  if (known.size() == kMost) known.clear();
  return known
      .emplace(std::piecewise_construct, std::forward_as_tuple(key, strides),
               std::forward_as_tuple(key, strides))
      .first->second;
}

}  // namespace octavo::cublaslt
