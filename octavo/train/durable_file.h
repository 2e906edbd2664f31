#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace octavo::train {

/// A file written from its start that is on the disk once close() has returned. Errors name the
/// file and the system's reason ("No space left on device"). Without close() the destructor removes
/// what was written: a failed write leaves no half file.
class DurableFile {
 public:
  explicit DurableFile(const std::filesystem::path& path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void close();  ///< fsync, then close

 private:
  [[noreturn]] void fail(int reason);

  std::filesystem::path path_;
  int file_ = -1;
};

/// Flushes a folder's entries (created, renamed, removed names) to the disk. File systems that
/// cannot do it are left alone.
void sync_directory(const std::filesystem::path& path);

}  // namespace octavo::train
