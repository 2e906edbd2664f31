#include "octavo/train/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace octavo::train {
namespace {

using nlohmann::json;

JsonResult no_json(std::string why) { return {json(json::value_t::discarded), std::move(why)}; }

// Brackets open at once, those within strings aside.
int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// nlohmann's messages without their "[json.exception.parse_error.101] " head, on one line.
std::string parse_error_text(const json::exception& error) {
  std::string text = error.what();
  const std::size_t end = text.find("] ");
  if (text.starts_with("[json") && end != std::string::npos) text.erase(0, end + 2);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The file's text to `text`; the reason where that fails, otherwise empty.
std::string read_text(const std::filesystem::path& path, std::string& text) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::string("cannot be read (") + std::strerror(errno) + ")";
  struct stat status = {};
  std::string error;
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    error = "is no regular file and cannot be read";
  } else if (static_cast<std::size_t>(status.st_size) > kLargestJson) {
    error = "is larger than " + std::to_string(kLargestJson >> 20) + " MiB";
  } else {
    text.resize(static_cast<std::size_t>(status.st_size));
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t got = ::read(file, text.data() + done, text.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) error = std::string("cannot be read (") + std::strerror(errno) + ")";
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    text.resize(done);
  }
  ::close(file);
  return error;
}

}  // namespace

JsonResult parse_json(std::string_view text, const json::parser_callback_t& callback) {
  if (depth_of(text) > kDeepestJson)
    return no_json("nested deeper than " + std::to_string(kDeepestJson) + " levels");
  try {
    return {json::parse(text, callback), ""};
  } catch (const json::exception& error) {
    return no_json("not JSON (" + parse_error_text(error) + ")");
  }
}

JsonResult read_json(const std::filesystem::path& path, const json::parser_callback_t& callback) {
  std::string text;
  std::string error = read_text(path, text);
  return error.empty() ? parse_json(text, callback) : no_json(std::move(error));
}

}  // namespace octavo::train
