#pragma once

#include <c10/core/Device.h>

#include <string>

#include "octavo/device/architecture.h"

namespace octavo {

/// What `device` is: "cpu" for the CPU and the Meta device, "sm_90" and the like for CUDA devices.
/// Errors: a GPU Octavo does not know (names the known ones); a CUDA device in a build without GPU
/// kernels.
Architecture architecture_of(c10::Device device);

/// The product's name as its driver reports it ("NVIDIA H200"), for peak_rates(); "cpu" for the
/// CPU. Errors: as architecture_of().
std::string product_name(c10::Device device);

}  // namespace octavo
