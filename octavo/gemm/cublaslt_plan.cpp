#include "octavo/gemm/cublaslt_plan.h"

#include <c10/util/Exception.h>

#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

namespace octavo::cublaslt {
namespace {

constexpr const char* kHeader = "octavo-cublaslt-plans 1 cublaslt";

struct Store {
  std::mutex mutex;
  std::map<PlanKey, Plan> plans;
};

Store& store() {
  static Store instance;
  return instance;
}

}  // namespace

std::optional<Plan> find_plan(const PlanKey& key) {
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  const auto found = s.plans.find(key);
  if (found == s.plans.end()) return std::nullopt;
  return found->second;
}

void keep_plan(const PlanKey& key, const Plan& plan) {
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  s.plans[key] = plan;
}

void write_plans(const std::string& path, std::uint64_t version) {
  std::ostringstream text;
  text << kHeader << " " << version << "\n";
  {
    Store& s = store();
    const std::lock_guard lock(s.mutex);
    for (const auto& [key, plan] : s.plans) {
      text << std::dec << key.m << ' ' << key.n << ' ' << key.k << ' ' << key.a_format << ' '
           << key.b_format << ' ' << key.a_scale << ' ' << key.b_scale << ' ' << key.out_dtype
           << ' ' << key.bias_dtype << ' ' << key.fast_accumulation << ' ' << key.accumulate << ' '
           << key.device << ' ' << plan.workspace << ' ' << plan.fast_accumulation << std::hex;
      for (const std::uint64_t word : plan.algorithm) text << ' ' << word;
      text << "\n";
    }
  }
  std::ofstream file(path);
  file << text.str() << std::flush;
  TORCH_CHECK(file.good(), "plan file '", path, "': cannot be written; check the folder and space");
}

void read_plans(const std::string& path, std::uint64_t version) {
  std::ifstream file(path);
  TORCH_CHECK(file.good(), "plan file '", path, "': cannot be read");
  std::string line;
  std::getline(file, line);
  const std::string expected = std::string(kHeader) + " " + std::to_string(version);
  TORCH_CHECK(line == expected, "plan file '", path, "': expected the first line '", expected,
              "', got '", line, "'; algorithms of another cuBLASLt mean nothing here, tune anew");
  std::map<PlanKey, Plan> plans;
  for (int number = 2; std::getline(file, line); ++number) {
    std::istringstream words(line);
    PlanKey key;
    Plan plan;
    words >> key.m >> key.n >> key.k >> key.a_format >> key.b_format >> key.a_scale >>
        key.b_scale >> key.out_dtype >> key.bias_dtype >> key.fast_accumulation >> key.accumulate >>
        key.device >> plan.workspace >> plan.fast_accumulation >> std::hex;
    for (std::uint64_t& word : plan.algorithm) words >> word;
    std::string rest;
    TORCH_CHECK(words && !(words >> rest), "plan file '", path, "': line ", number,
                " is no plan: '", line, "'; it is damaged, tune anew");
    plans[key] = plan;
  }
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  for (const auto& [key, plan] : plans) s.plans[key] = plan;
}

}  // namespace octavo::cublaslt
