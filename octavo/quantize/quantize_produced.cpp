#include "octavo/quantize/quantize_produced.h"

#include <c10/util/Exception.h>

#if !OCTAVO_WITH_CUDA

namespace octavo {

std::optional<QuantizedOperand> quantize_produced(const ProducedSwiglu&, const OperandSpec&,
                                                  at::Tensor*) {
  return std::nullopt;
}

std::optional<std::array<QuantizedOperand, 2>> quantize_swiglu_gradients(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const OperandSpec&,
    std::array<at::Tensor, 2>*) {
  return std::nullopt;
}

std::optional<GroupedOperand> quantize_grouped_produced(const ProducedSwiglu&, const at::Tensor&,
                                                        const OperandSpec&, at::Tensor*) {
  return std::nullopt;
}

std::optional<Amaxes> amaxes_for(const at::Tensor&, const OperandSpec&) { return std::nullopt; }

bool can_quantize_rms_norm(const ProducedRmsNorm&, const OperandSpec&) { return false; }

QuantizedOperand quantize_rms_norm(const ProducedRmsNorm&, const OperandSpec&) {
  TORCH_CHECK(false, "quantize_rms_norm: this build has no GPU kernels");
}

}  // namespace octavo

#endif
