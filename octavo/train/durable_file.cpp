#include "octavo/train/durable_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace octavo::train {

DurableFile::DurableFile(const std::filesystem::path& path) : path_(path) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) fail(errno);
}

DurableFile::~DurableFile() {
  if (file_ < 0) return;
  ::close(file_);
  // Never a device or a pipe that was named as the path.
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path_, ignored)) std::filesystem::remove(path_, ignored);
}

void DurableFile::fail(int reason) {
  TORCH_CHECK(false, "cannot write ", path_.string(), ": ", std::strerror(reason),
              reason == ENOSPC || reason == EDQUOT ? "; free some space and run again"
              : reason == EFBIG ? "; raise the file-size limit (ulimit -f) and run again"
                                : "; check the folder and its permissions");
}

void DurableFile::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    // One call writes less than 2 GiB on Linux.
    const ssize_t written =
        ::write(file_, next, std::min<std::size_t>(bytes, std::size_t{1} << 30));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(errno);
    }
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void DurableFile::close() {
  // Some file systems report a full disk only here.
  if (::fsync(file_) != 0 && errno != EINVAL && errno != EROFS) fail(errno);
  const int file = file_;
  file_ = -1;
  if (::close(file) != 0 && errno != EINTR) fail(errno);
}

void sync_directory(const std::filesystem::path& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

}  // namespace octavo::train
