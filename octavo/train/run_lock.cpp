#include "octavo/train/run_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace octavo::train {

RunLock::RunLock(const std::filesystem::path& run_dir) {
  std::error_code ignored;  // open() says what is wrong
  std::filesystem::create_directories(run_dir, ignored);
  const std::filesystem::path path = run_dir / ".lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  TORCH_CHECK(file_ >= 0, "run_dir: cannot write ", path.string(), ": ", std::strerror(errno),
              "; check the folder's permissions or name another run_dir");
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
