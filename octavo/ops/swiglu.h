#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace octavo {

/// h = silu(gate) * up, differentiable; computed in fp32, rounded once to gate's dtype.
///
/// gate, up: (..., F), one dtype (fp32, bf16 or fp16). Without up, gate is (..., 2F) and holds
/// both, gate first: what one product with stacked weights gives; its gradient is (..., 2F) too,
/// written in one pass. h: (..., F). Any strides within the last two dimensions' rows; columns that
/// are not contiguous are copied. Saves gate and up for backward. Errors: unlike sizes, dtypes or
/// devices, 2F odd, another dtype. Second derivatives are an error when they are asked for.
at::Tensor swiglu(const at::Tensor& gate, const std::optional<at::Tensor>& up = std::nullopt);

}  // namespace octavo
