#pragma once

#include <ATen/Context.h>

namespace octavo {

/// While it lives, fp32 matrix products run in fp32 on `backend`, whatever
/// torch.set_float32_matmul_precision() allows (bf16 in oneDNN, TF32 on NVIDIA). The setting is
/// touched only where it is reduced.
class FullPrecisionGuard {
 public:
  explicit FullPrecisionGuard(at::Float32Backend backend)
      : backend_(backend),
        saved_(at::globalContext().float32Precision(backend, at::Float32Op::MATMUL)) {
    if (reduced()) set(at::Float32Precision::IEEE);
  }
  ~FullPrecisionGuard() {
    if (reduced()) set(saved_);
  }
  FullPrecisionGuard(const FullPrecisionGuard&) = delete;
  FullPrecisionGuard& operator=(const FullPrecisionGuard&) = delete;

 private:
  bool reduced() const {
    return saved_ == at::Float32Precision::BF16 || saved_ == at::Float32Precision::TF32;
  }
  void set(at::Float32Precision precision) const {
    at::globalContext().setFloat32Precision(backend_, at::Float32Op::MATMUL, precision);
  }
  at::Float32Backend backend_;
  at::Float32Precision saved_;
};

}  // namespace octavo
