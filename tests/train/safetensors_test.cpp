#include "octavo/train/safetensors.h"
#include "tests/error_of.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace octavo::train {
namespace {

using testing::error_of;

namespace fs = std::filesystem;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("octavo_safetensors_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path path(const std::string& name) const { return folder_ / name; }

  fs::path write_bytes(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  static std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  // A file with this header text and data.
  static std::string file_of(const std::string& header, const std::string& data) {
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
    return length + header + data;
  }

  std::string read_error(const std::string& bytes) const {
    const fs::path file = write_bytes("bad.safetensors", bytes);
    return error_of([&] { SafetensorsFile{file}; });
  }

 private:
  fs::path folder_;
};

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "text: " << (text) << "\npart: " << (part)

// Bytes, sizes and dtype equal: values would let NaN and signed zeros slip.
bool same(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && x.dtype() == y.dtype() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

at::Tensor random_bytes(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<std::int64_t> bytes = sizes.vec();
  bytes.push_back(static_cast<std::int64_t>(c10::elementSize(dtype)));
  const at::Tensor raw = at::randint(0, dtype == at::kBool ? 2 : 256, bytes, at::kByte);
  return raw.view(dtype).reshape(sizes);
}

constexpr at::ScalarType kDtypes[] = {at::kByte,
                                      at::kDouble,
                                      at::kFloat,
                                      at::kHalf,
                                      at::kBFloat16,
                                      at::kFloat8_e4m3fn,
                                      at::kFloat8_e5m2,
                                      at::kFloat8_e4m3fnuz,
                                      at::kFloat8_e5m2fnuz,
                                      at::kFloat8_e8m0fnu,
                                      at::kLong,
                                      at::kInt,
                                      at::kShort,
                                      at::kChar,
                                      at::kBool};

NamedTensors every_dtype_and_awkward_sizes() {
  NamedTensors tensors;
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{}, {0}, {1}, {3, 5}, {2, 0, 7}, {33, 127}}) {
      tensors.emplace_back(std::string(c10::toString(dtype)) + "." + std::to_string(tensors.size()),
                           random_bytes(sizes, dtype));
    }
  }
  return tensors;
}

TEST_F(Safetensors, RoundTripIsByteExactForEveryDtype) {
  const NamedTensors tensors = every_dtype_and_awkward_sizes();
  write_safetensors(path("a"), tensors, {{"format", "pt"}, {"note", "\u00fc\n\"x\""}});
  const SafetensorsFile file(path("a"));
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("note"), "\u00fc\n\"x\"");
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(file.tensor(name), tensor)) << name;
  EXPECT_EQ(file.tensors().size(), tensors.size());
}

TEST_F(Safetensors, DataStartsAlignedAndEveryTensorIsAlignedToItsElement) {
  write_safetensors(path("a"), every_dtype_and_awkward_sizes());
  const std::string bytes = bytes_of(path("a"));
  std::uint64_t length = 0;
  for (int i = 0; i < 8; ++i)
    length |= std::uint64_t{static_cast<std::uint8_t>(bytes[i])} << (8 * i);
  EXPECT_EQ((8 + length) % 64, 0u);
  const SafetensorsFile file(path("a"));
  for (const auto& entry : file.entries())
    EXPECT_EQ(entry.begin % c10::elementSize(entry.dtype), 0u) << entry.name;
}

TEST_F(Safetensors, StridesAreWrittenAsContiguous) {
  const at::Tensor x = at::randn({7, 5});
  write_safetensors(
      path("a"),
      {{"t", x.t()}, {"slice", x.slice(1, 1, 3)}, {"stride0", x.select(0, 0).expand({4, 5})}});
  const SafetensorsFile file(path("a"));
  EXPECT_TRUE(same(file.tensor("t"), x.t()));
  EXPECT_TRUE(same(file.tensor("slice"), x.slice(1, 1, 3)));
  EXPECT_TRUE(same(file.tensor("stride0"), x.select(0, 0).expand({4, 5})));
}

TEST_F(Safetensors, TensorsOutliveTheFileAndWritingToThemLeavesItAlone) {
  const at::Tensor x = at::randn({1000});
  write_safetensors(path("a"), {{"x", x}});
  at::Tensor read = SafetensorsFile(path("a")).tensor("x");
  read.zero_();
  EXPECT_EQ(read.abs().sum().item<float>(), 0.0f);
  EXPECT_TRUE(same(SafetensorsFile(path("a")).tensor("x"), x));
}

TEST_F(Safetensors, NoTensors) {
  write_safetensors(path("a"), {});
  EXPECT_EQ(SafetensorsFile(path("a")).entries().size(), 0u);
}

TEST_F(Safetensors, UnalignedDataOfOtherWritersIsCopied) {
  // Header of odd length, fp32 data at an odd offset of the mapping.
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const float values[2] = {1.5f, -2.0f};
  const std::string data(reinterpret_cast<const char*>(values), 8);
  for (std::size_t pad = 0; pad < 4; ++pad) {
    const SafetensorsFile file(write_bytes("a", file_of(header + std::string(pad, ' '), data)));
    EXPECT_TRUE(same(file.tensor("x"), at::tensor({1.5f, -2.0f}))) << pad;
  }
}

TEST_F(Safetensors, TruncatedAtEveryLengthIsAnErrorOfOneLine) {
  write_safetensors(path("a"), {{"x", at::randn({3})}, {"y", at::ones({1}, at::kByte)}});
  const std::string whole = bytes_of(path("a"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string error = read_error(whole.substr(0, length));
    EXPECT_CONTAINS(error, "truncated") << length;
    EXPECT_CONTAINS(error, "bad.safetensors");
  }
  EXPECT_CONTAINS(read_error(whole + "z"), "after its last tensor");
}

TEST_F(Safetensors, ForeignFiles) {
  EXPECT_CONTAINS(read_error("PK\x03\x04 a zip archive, as torch.save writes them"),
                  "not a safetensors file");
  EXPECT_CONTAINS(read_error("{\"text\": \"json without the length\"}"), "not a safetensors file");
  EXPECT_CONTAINS(read_error(file_of("[1, 2]", "")), "not a safetensors file");
  EXPECT_CONTAINS(read_error(file_of("{broken", "")), "not a safetensors file");
  EXPECT_CONTAINS(error_of([&] { SafetensorsFile{path("none")}; }), "No such file");
  EXPECT_CONTAINS(error_of([&] { SafetensorsFile{fs::temp_directory_path()}; }), "regular file");
  EXPECT_CONTAINS(
      read_error(file_of(R"({"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "a")),
      "dtype F4");
}

TEST_F(Safetensors, HeadersThatLieAreErrors) {
  const char* bad[] = {
      R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,3]}})",    // sizes against offsets
      R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})",    // backwards
      R"({"x":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})",   // negative
      R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4.5]}})",  // no integer
      R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0]}})",
      R"({"x":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})",
      R"({"x":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})",
      R"({"x":{"shape":[4],"data_offsets":[0,4]}})",
      R"({"x":[1]})",
      R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",                      // a hole
      R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
          "y":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",                      // an overlap
      R"({"x":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",  // overflow
      R"({"x":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})",
      R"({"__metadata__":{"a":1}})",
  };
  for (const char* header : bad) EXPECT_CONTAINS(read_error(file_of(header, "abcd")), "damaged");
}

TEST_F(Safetensors, NamesAreChecked) {
  const at::Tensor x = at::ones({1});
  EXPECT_CONTAINS(error_of([&] { write_safetensors(path("a"), {{"x", x}, {"x", x}}); }), "twice");
  EXPECT_CONTAINS(error_of([&] { write_safetensors(path("a"), {{"\xff", x}}); }), "UTF-8");
  EXPECT_CONTAINS(error_of([&] {
                    write_safetensors(path("a"), {{"x", at::Tensor()}});
                  }),
                  "undefined");
  EXPECT_CONTAINS(error_of([&] {
                    write_safetensors(path("a"), {{"c", at::ones({1}, at::kComplexFloat)}});
                  }),
                  "dtype without a name");
  EXPECT_FALSE(fs::exists(path("a")));
  write_safetensors(path("a"), {{"weight", x}});
  EXPECT_CONTAINS(error_of([&] { SafetensorsFile(path("a")).tensor("wieght"); }), "'weight'");
}

TEST_F(Safetensors, NoSpaceLeavesNoFile) {
  const auto fails_cleanly = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] {
      write_safetensors(path("a"), {{"x", at::ones({10000})}});
    });
    return error.find("File too large") != std::string::npos &&
           error.find("ulimit") != std::string::npos && !fs::exists(path("a"));
  };
  // In a child process, because the limit cannot be taken back.
  EXPECT_EXIT(std::_Exit(fails_cleanly() ? 0 : 1), ::testing::ExitedWithCode(0), "");
  EXPECT_CONTAINS(error_of([&] {
                    write_safetensors("/dev/full", {{"x", at::ones({1})}});
                  }),
                  "No space left");
  EXPECT_TRUE(fs::exists("/dev/full"));  // only regular files are removed
}

// The other half of test_safetensors.py: reads every tensor of in.safetensors of a file that the
// safetensors package wrote, and writes them and the metadata to out.safetensors.
TEST(SafetensorsExchange, CopyTheFileOfThePythonTest) {
  const char* folder = std::getenv("OCTAVO_SAFETENSORS_EXCHANGE");
  if (!folder) GTEST_SKIP() << "only under test_safetensors.py";
  const SafetensorsFile file(fs::path(folder) / "in.safetensors");
  write_safetensors(fs::path(folder) / "out.safetensors", file.tensors(), file.metadata());
}

}  // namespace
}  // namespace octavo::train
