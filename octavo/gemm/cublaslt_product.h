#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <vector>

#include "octavo/gemm/cublaslt_plan.h"

/// cuBLASLt's view of one product. Included by *_cuda.cpp files only.
namespace octavo::cublaslt {

/// The most workspace an algorithm may ask for: what PyTorch gives cuBLASLt on Hopper; larger ones
/// win nothing on the shapes measured.
inline constexpr std::size_t kMaxWorkspace = std::size_t{32} << 20;

/// Throw, naming the call, where it failed.
void check(cublasStatus_t status, const char* call);
void check(cudaError_t error, const char* call);

/// Whether a CUDA graph is being captured on `stream`: nothing can be measured then.
bool is_capturing(cudaStream_t stream);

/// cuBLASLt objects that free themselves.
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

/// What one call multiplies; scales and bias on the device, null where the key has none.
struct Pointers {
  const void *a = nullptr, *b = nullptr;
  void* out = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;
  const void* bias = nullptr;
};

/// The strides of a product's matrices in elements, along the axis that is not contiguous.
struct Strides {
  std::int64_t a = 0, b = 0, out = 0;
  friend auto operator<=>(const Strides&, const Strides&) = default;
};

/// out^T (N, M) = b (N, K) . a (M, K)^T, seen column-major: cuBLASLt's A is our b, its B our a.
/// Holds cuBLASLt's description of the product; the pointers change from call to call.
class Product {
 public:
  /// On the current device, which is key.device. Errors: an output type cuBLASLt lacks.
  Product(const PlanKey& key, const Strides& strides);

  const PlanKey& key() const { return key_; }
  void set_pointers(const Pointers& pointers);
  void set_fast_accumulation(bool fast);

  /// cuBLASLt's algorithms for it, best guess first; none where it has none.
  std::vector<Plan> proposals() const;
  /// Whether another product's algorithm serves this one.
  bool takes(const Plan& plan) const;
  cublasStatus_t run(const Plan& plan, void* workspace, cudaStream_t stream) const;

 private:
  bool scaled() const { return key_.a_scale >= 0; }

  PlanKey key_;
  Pointers pointers_ = {};
  bool fast_accumulation_ = false;  // a new description's
  cublasLtHandle_t handle_;
  MatmulDescription description_;
  MatrixLayout a_layout_, b_layout_, out_layout_;
};

/// This thread's description of a product: making one anew costs as much as a launch.
Product& product_of(const PlanKey& key, const Strides& strides);

/// Multiplies by the algorithm that is kept for `key` or, the first time, chosen as
/// cublaslt_tuning() says: cuBLASLt's first proposal, or the fastest one, timed on `pointers`.
/// Without fast accumulation where only that exists. Errors: no algorithm; measuring while a CUDA
/// graph is being captured.
void multiply(const PlanKey& key, const Strides& strides, const Pointers& pointers,
              cudaStream_t stream);

}  // namespace octavo::cublaslt
