#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

#include "octavo/gemm/cublaslt_product.h"
#include "octavo/gemm/high_precision_mm.h"

namespace octavo {
namespace {

// Below this many operations choosing takes longer than many steps win, and there are shapes that
// change with every step.
constexpr double kWorthChoosing = 2e11;

constexpr std::int64_t kAligned = 16;  // bytes

struct Operand {
  int transposed;
  std::int64_t stride;
};

// How cuBLASLt reads a matrix; nothing where its fast kernels do not.
std::optional<Operand> operand_of_mm(const at::Tensor& x) {
  const bool transposed = x.stride(1) != 1;
  const std::int64_t stride = x.stride(transposed ? 1 : 0);
  if ((transposed && x.stride(0) != 1) || stride < x.size(transposed ? 0 : 1)) return std::nullopt;
  if (reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % kAligned != 0 ||
      stride * x.element_size() % kAligned != 0) {
    return std::nullopt;
  }
  return Operand{transposed, stride};
}

// While a graph is captured LibTorch's product is.
bool can_choose(const cublaslt::PlanKey& key, const cublaslt::Strides& strides,
                cudaStream_t stream) {
  return !cublaslt::is_capturing(stream) && !cublaslt::product_of(key, strides).proposals().empty();
}

}  // namespace

bool high_precision_mm_cublaslt(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                                bool adds) {
  const at::ScalarType dtype = a.scalar_type();
  const std::int64_t m = a.size(0), k = a.size(1), n = b.size(0);
  const bool fits = (dtype == at::kBFloat16 || dtype == at::kHalf) && b.scalar_type() == dtype &&
                    out.scalar_type() == dtype && b.size(1) == k && out.dim() == 2 &&
                    out.size(0) == m && out.size(1) == n && b.device() == a.device() &&
                    out.device() == a.device() &&
                    2.0 * double(m) * double(n) * double(k) >= kWorthChoosing;
  if (!fits) return false;
  const auto a_operand = operand_of_mm(a), b_operand = operand_of_mm(b),
             out_operand = operand_of_mm(out);
  if (!a_operand || !b_operand || !out_operand || out_operand->transposed) return false;
  const c10::cuda::CUDAGuard guard(a.device());
  cublaslt::PlanKey key;
  key.m = m;
  key.n = n;
  key.k = k;
  key.a_dtype = key.b_dtype = key.out_dtype = static_cast<int>(dtype);
  key.a_transposed = a_operand->transposed;
  key.b_transposed = b_operand->transposed;
  key.a_scale = key.b_scale = -1;
  key.accumulate = adds;
  key.device = a.device().index();
  const cublaslt::Strides strides{a_operand->stride, b_operand->stride, out_operand->stride};
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(a.device().index()).stream();
  if (!cublaslt::find_plan(key) && !can_choose(key, strides, stream)) return false;
  cublaslt::multiply(
      key, strides,
      {.a = a.const_data_ptr(), .b = b.const_data_ptr(), .out = out.mutable_data_ptr()}, stream);
  return true;
}

}  // namespace octavo
