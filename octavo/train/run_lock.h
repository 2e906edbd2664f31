#pragma once

#include <filesystem>

namespace octavo::train {

/// Throws where no run could write to run_dir: it, or the folder it would be made in, is a file or
/// may not be written to. Makes nothing.
void check_run_dir(const std::filesystem::path& run_dir);

/// Keeps a run_dir to one process: holds flock() on run_dir/.lock as long as it lives, and the
/// system lets go of it when the process dies, however that happens. Two runs that write one
/// run_dir would mix their files within one checkpoint.
///
/// Errors: another process holds it (names the folder and the repair); check_run_dir()'s; the file
/// cannot be made.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace octavo::train
