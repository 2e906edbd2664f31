#include "octavo/train/run_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/error_of.h"

namespace octavo::train {
namespace {

TEST(RunLock, OneHolderAtATimeAndFreeAfterwards) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("octavo_run_lock_" + std::to_string(::getpid()));
  {
    const RunLock held(folder / "run");
    // flock() belongs to the open file, so a second opening in this process is refused as well.
    const std::string error = testing::error_of([&] { RunLock(folder / "run"); });
    EXPECT_NE(error.find("is in use by another run"), std::string::npos) << error;
    const RunLock other(folder / "other");
  }
  EXPECT_EQ(testing::error_of([&] { RunLock(folder / "run"); }), "no error");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace octavo::train
