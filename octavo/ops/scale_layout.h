#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/granularity.h"

namespace octavo::ops {

/// `scale` in the strides default_scale_layout(granularity) asks for: itself where it has them,
/// which is always so in eager mode. Tools that clone what crosses the dispatcher (opcheck,
/// functionalisation) make the padded rows of 128x128 scales dense; then the few scales are copied.
at::Tensor in_default_layout(const at::Tensor& scale, const Granularity& granularity);

}  // namespace octavo::ops
