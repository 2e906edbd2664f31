#include "octavo/train/json_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace octavo::train {
namespace {

std::string nested(int depth, const std::string& middle) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += i % 2 ? "[" : "{\"a\":";
  text += middle;
  for (int i = depth; i-- > 0;) text += i % 2 ? "]" : "}";
  return text;
}

TEST(JsonFile, TextsUpToTheDepthAreReadAndDeeperOnesAreNot) {
  EXPECT_TRUE(parse_json(nested(kDeepestJson, "1")));
  EXPECT_NE(parse_json(nested(kDeepestJson + 1, "1")).error.find("nested deeper than 64"),
            std::string::npos);
  // Without the limit nlohmann's recursion overruns the stack somewhere below this.
  EXPECT_FALSE(parse_json(std::string(10000000, '[')));
  EXPECT_FALSE(parse_json(nested(2000000, "1")));
}

TEST(JsonFile, BracketsInStringsAreNoDepth) {
  const std::string text = "\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\"";
  EXPECT_TRUE(parse_json(text));
  EXPECT_TRUE(parse_json("[" + text + ", [\"\\\\\"]]"));
  std::string flat = "[[]";
  for (int i = 0; i < 1000; ++i) flat += ",[]";
  EXPECT_TRUE(parse_json(flat + "]"));
}

TEST(JsonFile, WhatIsNoJsonNamesThePlaceOnOneLine) {
  for (const char* text : {"", "{", "{\"a\": 1,\n \"b\" 2}", "\xff", "[1] [2]", "{\"a\": 1}\0"}) {
    const JsonResult result = parse_json(text);
    if (std::string(text) == "{\"a\": 1}") continue;
    EXPECT_NE(result.error.find("not JSON ("), std::string::npos) << text;
    EXPECT_EQ(result.error.find('\n'), std::string::npos) << result.error;
    EXPECT_TRUE(result.value.is_discarded());
  }
}

TEST(JsonFile, OnlyRegularFilesOfASmallSizeAreRead) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("octavo_json_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "good.json") << "{\"a\": [1, 2]}";
  EXPECT_EQ(read_json(folder / "good.json").value["a"][1], 2);
  EXPECT_NE(read_json(folder / "none.json").error.find("No such file"), std::string::npos);
  ASSERT_EQ(::mkfifo((folder / "pipe.json").c_str(), 0600), 0);
  for (const fs::path& path : {folder / "pipe.json", folder, fs::path("/dev/zero")})
    EXPECT_NE(read_json(path).error.find("no regular file"), std::string::npos) << path;
  std::ofstream(folder / "large.json").close();
  fs::resize_file(folder / "large.json", kLargestJson + 1);
  EXPECT_NE(read_json(folder / "large.json").error.find("larger than 16 MiB"), std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace octavo::train
