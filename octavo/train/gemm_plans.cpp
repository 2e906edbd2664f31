#include "octavo/train/gemm_plans.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "octavo/gemm/cublaslt.h"
#include "octavo/train/metrics.h"

namespace octavo::train {

#if OCTAVO_WITH_CUDA
namespace {

constexpr const char* kLogLabel = "plan        ";

std::ptrdiff_t plan_count(const std::string& text) {
  return std::max<std::ptrdiff_t>(std::count(text.begin(), text.end(), '\n') - 1, 0);
}

// Takes the file's plans; the log's line.
std::string use_plan_file(const std::filesystem::path& path) {
  std::error_code ignored;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, ignored)) file.open(path, std::ios::binary);
  TORCH_CHECK(file.is_open(), "plan: ", path.string(),
              " cannot be read; give the gemm_plans.txt of a run");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  use_cublaslt_plans(text, "plan: " + path.string());
  return kLogLabel + std::to_string(plan_count(text)) + " algorithms from " + path.string();
}

}  // namespace
#endif

std::filesystem::path gemm_plans_path(const TrainConfig& config) {
  return std::filesystem::path(config.run_dir) / "gemm_plans.txt";
}

std::vector<std::string> load_gemm_plans(const TrainConfig& config, c10::Device device) {
  if (device.is_cpu()) {
    TORCH_CHECK(config.plan.empty(), "plan: '", config.plan,
                "' holds algorithms of GPUs, the device is cpu; leave plan out");
    TORCH_CHECK(config.gemm_tuning == "auto", "gemm_tuning: '", config.gemm_tuning,
                "' chooses among algorithms of GPUs, the device is cpu; leave it at auto");
    return {};
  }
#if OCTAVO_WITH_CUDA
  if (config.gemm_tuning != "auto") {
    set_cublaslt_tuning(config.gemm_tuning == "measure" ? Tuning::kMeasure : Tuning::kHeuristic);
  }
  if (!config.plan.empty()) return {use_plan_file(config.plan)};
  const std::filesystem::path own = gemm_plans_path(config);
  if (!config.resume || !std::filesystem::exists(own)) return {};
  try {
    return {use_plan_file(own)};
  } catch (const c10::Error& error) {
    return {kLogLabel + std::string("refused, algorithms are chosen anew: ") +
            error.what_without_backtrace()};
  }
#else
  return {};
#endif
}

void save_gemm_plans(const TrainConfig& config, c10::Device device) {
#if OCTAVO_WITH_CUDA
  if (device.is_cpu()) return;
  const std::string text = cublaslt_plans();
  if (plan_count(text) > 0) write_whole(gemm_plans_path(config), text);
#else
  (void)config;
  (void)device;
#endif
}

}  // namespace octavo::train
