#include "octavo/recipe/nearest.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

TEST(Nearest, OneSlipFindsTheWord) {
  const std::vector<std::string> words = {"rowwise", "tensorwise", "blockwise", "mxfp8"};
  EXPECT_EQ(nearest("rowise", words), "rowwise");    // a letter missing
  EXPECT_EQ(nearest("rowwisee", words), "rowwise");  // a letter too many
  EXPECT_EQ(nearest("rowwice", words), "rowwise");   // a wrong letter
  EXPECT_EQ(nearest("rwowise", words), "rowwise");   // two swapped
  EXPECT_EQ(nearest("mxpf8", words), "mxfp8");
  EXPECT_EQ(nearest("tensor_wise", words), "tensorwise");
}

TEST(Nearest, SwapCountsOnce) {
  // By plain insertions and deletions "ab" is as far from "ba" as from "xy".
  EXPECT_EQ(nearest("ba", {"xa", "ab"}), "xa");  // equal distance: the first
  EXPECT_EQ(nearest("bacd", {"xycd", "abcd"}), "abcd");
}

TEST(Nearest, UnrelatedWordGetsNothing) {
  EXPECT_EQ(nearest("completely_else", {"rowwise", "mxfp8"}), "");
  EXPECT_EQ(nearest("", {"rowwise"}), "");
  EXPECT_EQ(nearest("rowwise", {}), "");
  EXPECT_EQ(did_you_mean("zzz", {"rowwise"}), "");
  EXPECT_EQ(did_you_mean("rowise", {"rowwise"}), " (did you mean 'rowwise'?)");
}

TEST(Nearest, Join) {
  EXPECT_EQ(join({}), "");
  EXPECT_EQ(join({"a"}), "a");
  EXPECT_EQ(join({"a", "b"}), "a, b");
}

}  // namespace
}  // namespace octavo
