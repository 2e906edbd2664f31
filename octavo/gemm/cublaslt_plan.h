#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

/// Which cuBLASLt algorithm a product uses: chosen once per key, kept for the process.
namespace octavo::cublaslt {

/// What distinguishes products for cuBLASLt. Enumerations as their integer values.
struct PlanKey {
  std::int64_t m = 0, n = 0, k = 0;  ///< out (M, N), contraction K, padded
  int a_dtype = 0, b_dtype = 0;      ///< at::ScalarType
  int a_transposed = 0,
      b_transposed = 0;          ///< rows contiguous instead of K: a (K, M), b (K, N) in memory
  int a_scale = 0, b_scale = 0;  ///< cublasLtMatmulMatrixScale_t, -1: not scaled
  int out_dtype = 0;             ///< at::ScalarType
  int bias_dtype = -1;           ///< at::ScalarType, -1: none
  int fast_accumulation = 0;
  int accumulate = 0;  ///< beta = 1
  int device = 0;

  friend auto operator<=>(const PlanKey&, const PlanKey&) = default;
};

/// A cublasLtMatmulAlgo_t, which is plain data.
using Algorithm = std::array<std::uint64_t, 8>;

struct Plan {
  Algorithm algorithm = {};
  std::uint64_t workspace = 0;  ///< bytes it needs
  bool fast_accumulation = false;
};

std::optional<Plan> find_plan(const PlanKey& key);
void keep_plan(const PlanKey& key, const Plan& plan);

/// The plans of one GPU as text. One line a plan: the key's numbers (without the GPU's index),
/// workspace, fast accumulation, the algorithm's words in hexadecimal, a checksum. The first line
/// names `maker`: the cuBLASLt and the GPU whose algorithms they are.
std::string write_plans(const std::string& maker, int device);

/// Keeps the plans of `text` for the GPU of index `device`; those for other products stay. Errors,
/// begun with `source`, after which nothing has been kept: another maker's, a line that is no plan
/// or was changed.
void read_plans(const std::string& text, const std::string& source, const std::string& maker,
                int device);

}  // namespace octavo::cublaslt
