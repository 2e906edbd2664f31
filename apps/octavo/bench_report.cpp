#include "apps/octavo/bench_report.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "apps/octavo/command.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/train/prepare.h"
#include "octavo/train/run_header.h"

namespace octavo::app {

std::vector<std::int64_t> parse_shape(const std::string& text, std::size_t count) {
  std::vector<std::int64_t> extents;
  bool good = true;
  const char *at = text.data(), *const end = at + text.size();
  while (good && at <= end) {
    std::int32_t extent = 0;
    const auto [next, error] = std::from_chars(at, end, extent);
    good = error == std::errc() && extent >= 1 && (next == end || *next == 'x');
    extents.push_back(extent);
    at = next + 1;
  }
  static constexpr const char* kForms[][2] = {
      {"MxK", "512x1024"}, {"MxKxN", "512x1024x256"}, {"MxDxFxE", "512x256x128x8"}};
  const auto& [form, example] = kForms[count - 2];
  TORCH_CHECK(good && extents.size() == count, "--shapes: expected ", form,
              " with extents of at least 1, such as ", example, ", got '", text,
              "'; separate several by commas");
  return extents;
}

c10::Device bench_device(const BenchOptions& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  return train::device_named(options.device);
}

BenchReport::BenchReport(const char* benchmark, const BenchOptions& options, c10::Device device,
                         std::vector<BenchColumn> columns)
    : columns_(std::move(columns)), prints_table_(!options.json || !options.json->empty()) {
  if (options.json && !options.json->empty()) file_.emplace(*options.json);
  const bool cpu = device.is_cpu();
  const std::string product =
      cpu ? train::processor_name() + ", " + train::cpu_capability() : product_name(device);
  const int threads = at::get_num_threads();
  head_ = {{"benchmark", benchmark},
           {"device", options.device},
           {"product", product},
           {"threads", threads},
           {"repetitions", options.repetitions}};
  if (!prints_table_) return;
  std::printf("bench %s on %s (%s)%s; medians of %d, contenders in turns, operands rotated\n",
              benchmark, options.device.c_str(), product.c_str(),
              cpu ? (", threads " + std::to_string(threads)).c_str() : "", options.repetitions);
}

void BenchReport::line(const std::string& text) const {
  if (prints_table_) std::printf("%s\n", text.c_str());
}

std::string BenchReport::text_of(const std::vector<nlohmann::ordered_json>& cells) const {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const BenchColumn& column = columns_[i];
    const bool text = column.decimals == BenchColumn::kText;
    std::string cell = cells[i].is_null() ? "n/a"
                       : text             ? cells[i].get<std::string>()
                                          : fixed(cells[i].get<double>(), column.decimals);
    const std::size_t width = static_cast<std::size_t>(column.width);
    const std::string padding(width - std::min(width, cell.size()), ' ');
    line += (i ? "  " : "") + (text ? cell + padding : padding + cell);
  }
  return line;
}

void BenchReport::heading() {
  if (heading_printed_) return;
  heading_printed_ = true;
  std::string line;
  for (const BenchColumn& column : columns_) {
    const std::string word = column.heading;
    const std::size_t width = static_cast<std::size_t>(column.width);
    const std::string padding(width - std::min(width, word.size()), ' ');
    line += (line.empty() ? "" : "  ") +
            (column.decimals == BenchColumn::kText ? word + padding : padding + word);
  }
  std::printf("%s\n", line.c_str());
}

void BenchReport::row(const std::vector<nlohmann::ordered_json>& cells) {
  TORCH_INTERNAL_ASSERT(cells.size() == columns_.size());
  nlohmann::ordered_json& result = results_.emplace_back(nlohmann::ordered_json::object());
  for (std::size_t i = 0; i < cells.size(); ++i) result[columns_[i].key] = cells[i];
  if (!prints_table_) return;
  heading();
  std::printf("%s\n", text_of(cells).c_str());
  std::fflush(stdout);
}

void BenchReport::skipped(const std::vector<nlohmann::ordered_json>& cells,
                          const std::string& reason) {
  nlohmann::ordered_json& result = results_.emplace_back(nlohmann::ordered_json::object());
  for (std::size_t i = 0; i < cells.size(); ++i) result[columns_[i].key] = cells[i];
  result["skipped"] = reason;
  if (!prints_table_) return;
  heading();
  std::printf("%s  skipped: %s\n", text_of(cells).c_str(), reason.c_str());
}

void BenchReport::finish() {
  head_["results"] = results_;
  const std::string text = head_.dump(2) + "\n";
  if (file_) {
    file_->write(text);
    file_->close();
  } else if (!prints_table_) {
    std::printf("%s", text.c_str());
  }
}

}  // namespace octavo::app
