#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

/// A file of JSON values, one a line, appended and flushed line by line: what has been written
/// survives the process. Each line of a run's metrics.jsonl has "event" and "step":
///   start, resume  recipe, flavour, fast_accumulation, threads, memory (MemoryLedger), config
///   train          loss, gradient_norm, lr, seconds, tokens_per_second, memory (bytes in use);
///   with experts also aux_loss
///                  (added to loss for the gradients) and expert_load (tokens of the busiest expert
///                  over the mean, of the block where that is largest)
///   fp8            layers: of each converted layer the health of x, w and dy (fp8_stats.h); after
///                  the train line of every step that fp8_stats divides, and of the first
///   validation     loss (null where it is not finite), eval_recipe
///   checkpoint     saved after that step
/// After a resume a step may occur twice, and the later line holds.
class JsonLines {
 public:
  enum class Mode : std::uint8_t { kAppend, kTruncate };
  /// Opens `path` and makes its folder. kTruncate starts anew; kAppend goes on after the last whole
  /// line: what a killed process left of the next one is cut off. Errors name the path.
  JsonLines(const std::filesystem::path& path, Mode mode);
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;
  JsonLines& operator=(const JsonLines&) = delete;

  /// Errors: the line could not be written (disk full), naming the path.
  void write(const nlohmann::json& value);

 private:
  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

/// Writes `text` to a temporary name beside `path` and renames it: `path` is whole or what it was.
/// Errors name the path.
void write_whole(const std::filesystem::path& path, const std::string& text);

/// write_whole() of `value`, indented; an ordered_json keeps the order of its keys.
template <class Json = nlohmann::json>
void write_json(const std::filesystem::path& path, const Json& value) {
  write_whole(path, value.dump(2) + "\n");
}

/// Memory in bytes: in use, and the most there was.
struct Memory {
  std::int64_t resident = 0;
  std::int64_t peak = 0;
};

/// Of this process, from /proc/self/status (0 where there is none).
Memory process_memory();

/// What a run on `device` is short of: on a GPU the bytes of all tensors there (LibTorch's
/// allocator, as torch.cuda.memory_allocated() and max_memory_allocated()), else process_memory().
Memory memory_of(c10::Device device);

/// Forgets a GPU's peak. A process's stays.
void forget_peak_memory(c10::Device device);
/// The same, and the memory that no tensor uses goes back to the GPU.
void release_unused_memory(c10::Device device);

/// What one progress line shows.
struct Progress {
  std::int64_t step = 0;  ///< steps done
  std::int64_t steps = 0;
  double loss = 0.0;
  double gradient_norm = 0.0;
  double lr = 0.0;
  double tokens_per_second = 0.0;
  std::optional<double> mfu;  ///< 0..1 of the device's peak; none: "n/a"
  Memory memory;
  double seconds_left = 0.0;
};

/// "step   120/1000  loss 2.3456  norm 0.53  lr 2.9e-03  12345 tok/s  MFU n/a  512 MiB (peak 600)
/// 1m20s left", on one line.
std::string progress_line(const Progress& progress);

/// "1,234,567".
std::string with_commas(std::int64_t value);

/// "45s", "1m20s", "2h05m".
std::string duration(double seconds);

/// The middle value (the mean of the two middle ones of an even count); 0 for none.
double median(std::vector<double> values);

/// Median of the steps after the tenth; of all where there are no more than ten.
double seconds_per_step(const std::vector<double>& step_seconds);

}  // namespace octavo::train
