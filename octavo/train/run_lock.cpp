#include "octavo/train/run_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace octavo::train {

void check_run_dir(const std::filesystem::path& run_dir) {
  std::error_code ignored;
  // What is there already of the folders that the run is to be in.
  std::filesystem::path there = std::filesystem::absolute(run_dir, ignored);
  while (there.has_relative_path() && !std::filesystem::exists(there, ignored)) {
    there = there.parent_path();
  }
  TORCH_CHECK(std::filesystem::is_directory(there, ignored), "run_dir: expected a folder, got ",
              run_dir.string(), ", where ", there.string(),
              " is a file; name another run_dir, or move the file away");
  TORCH_CHECK(::access(there.c_str(), W_OK | X_OK) == 0, "run_dir: cannot write in ",
              there.string(), ": ", std::strerror(errno),
              "; check the folder's permissions or name another run_dir");
}

RunLock::RunLock(const std::filesystem::path& run_dir) {
  check_run_dir(run_dir);
  std::error_code failure;
  std::filesystem::create_directories(run_dir, failure);
  TORCH_CHECK(!failure, "run_dir: cannot make ", run_dir.string(), ": ", failure.message(),
              "; free some space or name another run_dir");
  const std::filesystem::path path = run_dir / ".lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  TORCH_CHECK(file_ >= 0, "run_dir: cannot write ", path.string(), ": ", std::strerror(errno),
              errno == ENOSPC || errno == EDQUOT
                  ? "; free some space or name another run_dir"
                  : "; check the folder's permissions or name another run_dir");
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(file_);
  TORCH_CHECK(error != EWOULDBLOCK, "run_dir: ", run_dir.string(),
              " is in use by another run; wait for it, or name another run_dir");
  // A file system without locks (some network ones): go on as if nobody else were there.
  file_ = -1;
}

RunLock::~RunLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace octavo::train
