#include "octavo/train/metrics.h"

#include <c10/util/Exception.h>

#if OCTAVO_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstring>
#include <fstream>
#include <system_error>

#include "octavo/train/durable_file.h"

namespace octavo::train {

namespace {

constexpr char kRepair[] = "; free some space or choose another run_dir";

void make_parent(const std::filesystem::path& path) {
  std::error_code error;
  if (!path.has_parent_path()) return;
  std::filesystem::create_directories(path.parent_path(), error);
  TORCH_CHECK(!error, "run_dir: cannot make '", path.parent_path().string(), "': ", error.message(),
              kRepair);
}

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof(text), pattern, arguments);
  va_end(arguments);
  return text;
}

// Cuts a file back to the end of its last line. Appending to half a line would spoil the next one
// too.
void cut_torn_line(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;  // not there yet, or a device
  std::ifstream file(path, std::ios::binary);
  std::int64_t size = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  const std::int64_t before = size;
  for (; !error && size > 0; --size) {
    file.seekg(size - 1);
    if (file.get() == '\n') break;
    TORCH_CHECK(file, "metrics: cannot read '", path.string(), "'; choose another run_dir");
  }
  if (!error && size < before) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(size), error);
  }
  TORCH_CHECK(!error, "metrics: cannot cut the torn last line off '", path.string(),
              "': ", error.message(), "; remove that line or choose another run_dir");
}

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

}  // namespace

JsonLines::JsonLines(const std::filesystem::path& path, Mode mode) : path_(path) {
  make_parent(path);
  std::error_code ignored;
  // Opening would wait for a reader.
  TORCH_CHECK(!std::filesystem::is_fifo(path, ignored), "metrics: '", path.string(),
              "' is a named pipe; remove it or choose another run_dir");
  if (mode == Mode::kAppend) cut_torn_line(path);
  file_ = std::fopen(path.c_str(), mode == Mode::kTruncate ? "w" : "a");
  TORCH_CHECK(file_ != nullptr, "metrics: cannot open '", path.string(),
              "': ", std::strerror(errno), kRepair);
}

JsonLines::~JsonLines() { std::fclose(file_); }

void JsonLines::write(const nlohmann::json& value) {
  const std::string line = value.dump() + "\n";
  const bool good = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
  TORCH_CHECK(std::fflush(file_) == 0 && good, "metrics: cannot write to '", path_.string(),
              "': ", std::strerror(errno), kRepair);
}

void write_whole(const std::filesystem::path& path, const std::string& text) {
  make_parent(path);
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  DurableFile file(temporary);
  file.write(text);
  file.close();
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  TORCH_CHECK(!error, "summary: cannot rename '", temporary.string(), "' to '", path.string(),
              "': ", error.message(), kRepair);
  sync_directory(path.parent_path().empty() ? "." : path.parent_path());
}

Memory process_memory() {
  Memory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::int64_t* field = line.starts_with("VmRSS:")   ? &memory.resident
                          : line.starts_with("VmHWM:") ? &memory.peak
                                                       : nullptr;
    if (field) *field = std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;  // "VmRSS:  123 kB"
  }
  return memory;
}

Memory memory_of([[maybe_unused]] c10::Device device) {
#if OCTAVO_WITH_CUDA
  if (device.is_cuda()) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    const auto& bytes =
        stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    return {.resident = bytes.current, .peak = bytes.peak};
  }
#endif
  return process_memory();
}

void forget_peak_memory([[maybe_unused]] c10::Device device) {
#if OCTAVO_WITH_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#endif
}

void release_unused_memory([[maybe_unused]] c10::Device device) {
#if OCTAVO_WITH_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::emptyCache();
#endif
  forget_peak_memory(device);
}

std::string progress_line(const Progress& p) {
  const std::string mfu = p.mfu ? format("%.1f%%", *p.mfu * 100.0) : "n/a";
  const int width = static_cast<int>(std::to_string(p.steps).size());
  return format(
      "step %*lld/%lld  loss %.4f  norm %.3g  lr %.3g  %.0f tok/s  MFU %s  %.0f MiB (peak %.0f)  "
      "%s left",
      width, static_cast<long long>(p.step), static_cast<long long>(p.steps), p.loss,
      p.gradient_norm, p.lr, p.tokens_per_second, mfu.c_str(), mebibytes(p.memory.resident),
      mebibytes(p.memory.peak), duration(p.seconds_left).c_str());
}

std::string with_commas(std::int64_t value) {
  const std::string digits = std::to_string(value < 0 ? -value : value);
  std::string text = value < 0 ? "-" : "";
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string duration(double seconds) {
  if (!(seconds >= 0.0 && seconds < 1e9)) return "?";
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 60) return format("%llds", whole);
  if (whole < 3600) return format("%lldm%02llds", whole / 60, whole % 60);
  return format("%lldh%02lldm", whole / 3600, whole / 60 % 60);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const std::size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + middle, values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  const double lower = *std::max_element(values.begin(), values.begin() + middle);
  return (lower + upper) / 2.0;
}

double seconds_per_step(const std::vector<double>& step_seconds) {
  constexpr std::size_t kWarm = 10;
  if (step_seconds.size() <= kWarm) return median(step_seconds);
  return median({step_seconds.begin() + kWarm, step_seconds.end()});
}

}  // namespace octavo::train
