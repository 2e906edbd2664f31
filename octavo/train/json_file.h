#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

/// Every small JSON file that octavo reads (configurations, state.json, summary.json) comes through
/// here: somebody else may have written it, or something else may have its name.
namespace octavo::train {

/// What a text or file holds, or why it holds nothing.
struct JsonResult {
  nlohmann::json value;  ///< discarded where there is an error
  std::string error;     ///< empty; or a clause: "not JSON (parse error at line 2, ...)"

  explicit operator bool() const { return error.empty(); }
};

/// Deepest nesting read: nlohmann::json recurses where it writes and compares values.
inline constexpr int kDeepestJson = 64;
/// Largest file read.
inline constexpr std::size_t kLargestJson = std::size_t{16} << 20;

/// `text` as JSON; `callback` as nlohmann::json::parse takes it. An error: no JSON (with the
/// place); nested deeper than kDeepestJson.
JsonResult parse_json(std::string_view text,
                      const nlohmann::json::parser_callback_t& callback = nullptr);

/// The file at `path` as JSON. Errors: as parse_json(); a file that cannot be read (with the
/// system's reason), that is no regular file (a folder, a device, a pipe, for whose writer nobody
/// waits), that is larger than kLargestJson.
JsonResult read_json(const std::filesystem::path& path,
                     const nlohmann::json::parser_callback_t& callback = nullptr);

}  // namespace octavo::train
