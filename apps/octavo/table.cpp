#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/octavo/command.h"

namespace octavo::app {
namespace {

bool is_number(const std::string& cell) {
  if (cell.empty()) return false;
  char* end = nullptr;
  std::strtod(cell.c_str(), &end);
  return *end == '\0' || *end == '%' || *end == 'x' || *end == ',';
}

}  // namespace

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return "";
  const std::size_t columns = rows[0].size();
  std::vector<std::size_t> width(columns, 0);
  std::vector<bool> right(columns, rows.size() > 1);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], rows[r][c].size());
      if (r > 0 && !is_number(rows[r][c]) && rows[r][c] != "n/a") right[c] = false;
    }
  }
  std::string out;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string padding(width[c] - row[c].size(), ' ');
      line += (c ? "  " : "") + (right[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  append(rows[0]);
  std::vector<std::string> rule;
  for (const std::size_t w : width) rule.push_back(std::string(w, '-'));
  append(rule);
  for (std::size_t r = 1; r < rows.size(); ++r) append(rows[r]);
  return out;
}

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return fixed(bytes, unit == 0 ? 0 : 1) + " " + units[unit];
}

}  // namespace octavo::app
