#include "octavo/ops/swiglu_operand.h"

#include "octavo/ops/swiglu_device.h"
#include "octavo/quantize/allocate.h"

namespace octavo::ops {
namespace {

at::Tensor empty_rows(const at::Tensor& like, std::int64_t columns) {
  return empty_on(like.device(), {like.size(0), columns}, like.scalar_type());
}

struct StackedHalves {
  at::Tensor gate, up;

  explicit StackedHalves(const at::Tensor& both)
      : gate(both.narrow(1, 0, both.size(1) / 2)),
        up(both.narrow(1, both.size(1) / 2, both.size(1) / 2)) {}
};

// An operand that was written, whether or not somebody wants a layout of it.
QuantizedOperand quantize_written(const at::Tensor& x, const OperandSpec& spec,
                                  const std::optional<Amaxes>& amaxes) {
  if (amaxes) {
    OperandSpec known = spec;
    known.amax = *amaxes;
    return quantize_operand(x, known);
  }
  return spec.rows || spec.transposed ? quantize_operand(x, spec) : QuantizedOperand{};
}

GroupedOperand quantize_written(const at::Tensor& x, const at::Tensor& offs,
                                const OperandSpec& spec) {
  return spec.rows || spec.transposed ? quantize_grouped_operand(x, offs, spec) : GroupedOperand{};
}

const Amaxes* pointer_to(const std::optional<Amaxes>& amaxes) {
  return amaxes ? &*amaxes : nullptr;
}

}  // namespace

QuantizedOperand swiglu_operand(const at::Tensor& gate, const at::Tensor& up,
                                const OperandSpec& spec, bool fuse, at::Tensor* written) {
  if (fuse) {
    if (auto operand = quantize_produced({.gate = gate, .up = up}, spec, written)) return *operand;
  }
  const at::Tensor h = empty_rows(gate, gate.size(1));
  const std::optional<Amaxes> amaxes = fuse ? amaxes_for(h, spec) : std::nullopt;
  swiglu_rows(gate, up, h, pointer_to(amaxes));
  if (written) *written = h;
  return quantize_written(h, spec, amaxes);
}

std::array<QuantizedOperand, 2> swiglu_gradient_operands(const at::Tensor& dh,
                                                         const at::Tensor& gate,
                                                         const at::Tensor& up,
                                                         const OperandSpec& spec, bool fuse,
                                                         std::array<at::Tensor, 2>* written) {
  if (fuse) {
    if (auto both = quantize_swiglu_gradients(dh, gate, up, spec, written)) return *both;
  }
  const at::Tensor dgate = empty_rows(gate, gate.size(1)), dup = empty_rows(gate, gate.size(1));
  std::optional<Amaxes> dgate_amaxes, dup_amaxes;
  if (fuse) {
    dgate_amaxes = amaxes_for(dgate, spec);
    dup_amaxes = amaxes_for(dup, spec);
  }
  swiglu_backward_rows(dh, gate, up, dgate, dup, pointer_to(dgate_amaxes), pointer_to(dup_amaxes));
  if (written) *written = {dgate, dup};
  return {quantize_written(dgate, spec, dgate_amaxes), quantize_written(dup, spec, dup_amaxes)};
}

GroupedOperand grouped_swiglu_operand(const at::Tensor& gate_up, const at::Tensor& offs,
                                      const OperandSpec& spec, bool fuse, at::Tensor* written) {
  const StackedHalves in(gate_up);
  if (fuse) {
    if (auto operand =
            quantize_grouped_produced({.gate = in.gate, .up = in.up}, offs, spec, written)) {
      return *operand;
    }
  }
  const at::Tensor h = empty_rows(in.gate, in.gate.size(1));
  swiglu_rows(in.gate, in.up, h);
  if (written) *written = h;
  return quantize_written(h, offs, spec);
}

GroupedOperand grouped_swiglu_gradient_operand(const at::Tensor& dh, const at::Tensor& gate_up,
                                               const at::Tensor& offs, const OperandSpec& spec,
                                               bool fuse, at::Tensor* written) {
  const StackedHalves in(gate_up);
  if (fuse) {
    if (auto operand = quantize_grouped_produced({.gate = in.gate, .up = in.up, .dh = dh}, offs,
                                                 spec, written)) {
      return *operand;
    }
  }
  const at::Tensor both = empty_rows(gate_up, gate_up.size(1));
  const StackedHalves out(both);
  swiglu_backward_rows(dh, in.gate, in.up, out.gate, out.up);
  if (written) *written = both;
  return quantize_written(both, offs, spec);
}

}  // namespace octavo::ops
