#include "octavo/quantize/quantize_produced.h"

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

}  // namespace octavo

#endif
