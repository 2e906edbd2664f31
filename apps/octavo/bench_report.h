#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/octavo/bench.h"
#include "octavo/train/durable_file.h"

namespace octavo::app {

/// One column of a benchmark's table, which is one key of its JSON.
struct BenchColumn {
  const char* heading;
  const char* key;  ///< in JSON: does not change once others read it
  int width;        ///< text columns come first, left-aligned; numbers right-aligned
  int decimals;     ///< of a number; kText: a text column

  static constexpr int kText = -1;
};

/// The report of one benchmark: lines as they are measured, and the same figures as JSON:
///   {"benchmark", "device", "product", "threads", "repetitions", facts..., "results": [{key:
///   ...}]}
class BenchReport {
 public:
  /// Opens options.json, so that a file that cannot be written is an error before anything is
  /// measured. A report that is not finished leaves no file.
  BenchReport(const char* benchmark, const BenchOptions& options, c10::Device device,
              std::vector<BenchColumn> columns);

  /// A key of the JSON's head.
  void fact(const char* key, const nlohmann::ordered_json& value) { head_[key] = value; }
  /// A line above the table.
  void line(const std::string& text) const;

  /// One line, a cell for each column; null is "n/a".
  void row(const std::vector<nlohmann::ordered_json>& cells);
  /// A line of the first cells alone that says why there are no others.
  void skipped(const std::vector<nlohmann::ordered_json>& cells, const std::string& reason);

  /// Writes the JSON.
  void finish();

 private:
  void heading();
  std::string text_of(const std::vector<nlohmann::ordered_json>& cells) const;

  std::vector<BenchColumn> columns_;
  bool prints_table_;
  bool heading_printed_ = false;
  std::optional<train::DurableFile> file_;
  nlohmann::ordered_json head_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

}  // namespace octavo::app
