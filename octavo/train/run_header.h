#pragma once

#include <string>
#include <vector>

#include "octavo/train/config.h"
#include "octavo/train/data.h"
#include "octavo/train/prepare.h"

namespace octavo::train {

/// The machine as a log names it: the processor's name from /proc/cpuinfo and the instruction set
/// LibTorch chose, "AMD EPYC, AVX2".
std::string processor_name();
std::string cpu_capability();

/// The first lines of a run's log, one fact a line: device and threads, model and parameters,
/// recipe, flavour, how its products run (native, emulated or high precision) and with which fast
/// accumulation, layers converted and which are not and why, data and tokens a step.
std::vector<std::string> run_header(const TrainConfig& config, const PreparedModel& prepared,
                                    const DataSplit& data);

/// One line for each key (the run's own folder, logging and checkpoint keys aside) whose value
/// differs between a checkpoint's configuration and the one it is resumed with: from there on the
/// run is not the one that would have gone on uninterrupted.
std::vector<std::string> resume_differences(const TrainConfig& checkpoint,
                                            const TrainConfig& config);

}  // namespace octavo::train
