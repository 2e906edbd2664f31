#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "octavo/gemm/scaled_mm.h"

namespace octavo {

/// scaled_mm on FP8 tensor cores through cuBLASLt, on the current stream, without a host
/// synchronisation once a shape's algorithm is known.
///
/// Expects what scaled_mm() has checked: CUDA operands that fit together, M, N and K at least 1.
/// Pairs: tensorwise with tensorwise (one scale each), rowwise with rowwise (outer vector; Hopper),
/// 1x128 with 1x128 or 128x128 (Hopper). A tensorwise operand beside a rowwise one has its scale
/// repeated. K and N that are no multiple of 16 (1x128: M too) are padded with zero bytes in copies
/// of the operands and the result is cut. Bias in out_dtype goes into cuBLASLt's epilogue (bf16
/// where the output is fp32); another one is added in fp32 to an fp32 product, before the one
/// rounding.
///
/// The algorithm: cublaslt_tuning() says how it is chosen, once per shape; the choice is kept for
/// the process and can be saved.
at::Tensor scaled_mm_cublaslt(const ScaledTensor& a, const ScaledTensor& b,
                              const MatmulOptions& options);

/// How an algorithm is chosen for a shape not seen before.
enum class Tuning : std::uint8_t {
  kMeasure,  ///< the fastest of cuBLASLt's proposals, timed on the operands at hand; long products
             ///< are timed at work by themselves, about a second for a shape
  kHeuristic,  ///< cuBLASLt's first proposal
};

/// The process's choice; kMeasure unless OCTAVO_GEMM_TUNING=heuristic. Measuring inside CUDA-graph
/// capture is impossible: an untuned shape there is an error that says to run one step first.
Tuning cublaslt_tuning();
void set_cublaslt_tuning(Tuning tuning);

/// The algorithms chosen on the current GPU so far as text, one line a shape, and back: a run that
/// takes another's plans multiplies with the same algorithms. `source` begins the messages. Errors,
/// after which no plan has been taken: plans of another cuBLASLt version or GPU; a line that is no
/// plan or was changed.
std::string cublaslt_plans();
void use_cublaslt_plans(const std::string& text, const std::string& source);

}  // namespace octavo
