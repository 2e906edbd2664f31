#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <string>
#include <vector>

#include "octavo/train/config.h"

namespace octavo::train {

/// run_dir/gemm_plans.txt: the cuBLASLt algorithms that a run on a GPU has chosen. A resumed run
/// reads its own and config.plan names another's, so that both multiply with the same algorithms.
std::filesystem::path gemm_plans_path(const TrainConfig& config);

/// Sets config.gemm_tuning, and takes the plans of config.plan or, where config.resume goes on with
/// a run that has some, that run's own; returns lines for the log's head. The run's own that do not
/// fit (another cuBLASLt or GPU, a damaged file) are not taken, and a line says so.
/// Errors: config.plan cannot be read or does not fit; gemm_tuning or plan where the device is the
/// CPU, which has no such algorithms.
std::vector<std::string> load_gemm_plans(const TrainConfig& config, c10::Device device);

/// Writes the plans of this process so far, whole or not at all; nothing where the device is the
/// CPU or none has been chosen.
void save_gemm_plans(const TrainConfig& config, c10::Device device);

}  // namespace octavo::train
