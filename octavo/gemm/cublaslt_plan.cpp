#include "octavo/gemm/cublaslt_plan.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <sstream>

namespace octavo::cublaslt {
namespace {

struct Store {
  std::mutex mutex;
  std::map<PlanKey, Plan> plans;
};

Store& store() {
  static Store instance;
  return instance;
}

std::string first_line(const std::string& maker) { return "octavo gemm plans 2, " + maker; }

// "line checksum", FNV-1a of 64 bits.
std::string with_checksum(const std::string& line) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : line) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  std::ostringstream out;
  out << line << ' ' << std::hex << hash;
  return out.str();
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

std::string write_plans(const std::string& maker, int device) {
  std::string text = first_line(maker) + "\n";
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  for (const auto& [key, plan] : s.plans) {
    if (key.device != device) continue;
    std::ostringstream words;
    words << key.m << ' ' << key.n << ' ' << key.k << ' ' << key.a_dtype << ' ' << key.b_dtype
          << ' ' << key.a_transposed << ' ' << key.b_transposed << ' ' << key.a_scale << ' '
          << key.b_scale << ' ' << key.out_dtype << ' ' << key.bias_dtype << ' '
          << key.fast_accumulation << ' ' << key.accumulate << ' ' << plan.workspace << ' '
          << plan.fast_accumulation << std::hex;
    for (const std::uint64_t word : plan.algorithm) words << ' ' << word;
    text += with_checksum(words.str()) + "\n";
  }
  return text;
}

void read_plans(const std::string& text, const std::string& source, const std::string& maker,
                int device) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  TORCH_CHECK(line == first_line(maker), source, ": expected the first line '", first_line(maker),
              "', got '", line.substr(0, 100),
              "'; its algorithms mean nothing here: leave the file out, and they are chosen anew");
  std::map<PlanKey, Plan> plans;
  for (int number = 2; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    PlanKey key;
    Plan plan;
    key.device = device;
    words >> key.m >> key.n >> key.k >> key.a_dtype >> key.b_dtype >> key.a_transposed >>
        key.b_transposed >> key.a_scale >> key.b_scale >> key.out_dtype >> key.bias_dtype >>
        key.fast_accumulation >> key.accumulate >> plan.workspace >> plan.fast_accumulation >>
        std::hex;
    for (std::uint64_t& word : plan.algorithm) words >> word;
    // cuBLASLt trusts an algorithm's words, so a line must be as it was written.
    TORCH_CHECK(words && line == with_checksum(line.substr(0, line.rfind(' '))), source, ": line ",
                number, " is no plan or was changed: '", line.substr(0, 100),
                "'; leave the file out, and algorithms are chosen anew");
    plans[key] = plan;
  }
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  for (const auto& [key, plan] : plans) s.plans[key] = plan;
}

}  // namespace octavo::cublaslt
