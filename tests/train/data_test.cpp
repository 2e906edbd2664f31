#include "octavo/train/data.h"
#include "octavo/train/token_file.h"
#include "tests/error_of.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/utils.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

namespace octavo::train {
namespace {

class DataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("octavo_data_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string shard(const std::string& name, std::int64_t first, std::int64_t count,
                    std::int64_t width = 2) const {
    write_token_shard(path(name), torch::arange(first, first + count), width);
    return path(name);
  }
  // The message of the error that opening `spec` gives.
  static std::string error_of(const std::string& spec) {
    try {
      TokenSource::open(spec);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

std::vector<std::int64_t> values(const at::Tensor& tokens) {
  const at::Tensor flat = tokens.contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

TEST_F(DataTest, ATextFileIsItsBytes) {
  const TokenSource source = TokenSource::open(write("a.txt", std::string("a\xff\0b\n", 5)));
  EXPECT_EQ(source.size(), 5);
  EXPECT_EQ(values(source.window(0, 5)), (std::vector<std::int64_t>{97, 255, 0, 98, 10}));
}

TEST_F(DataTest, AShardIsAHeaderOf256BytesAndLittleEndianTokens) {
  // Written by hand from the documented layout, not by write_token_shard.
  std::string bytes(256 + 6, '\0');
  std::memcpy(bytes.data(), "OCTAVOTK", 8);
  bytes[8] = 1;    // version
  bytes[12] = 2;   // bytes a token
  bytes[16] = 3;   // tokens
  bytes[256] = 7;  // 7, 258, 65535
  bytes[258] = 2;
  bytes[259] = 1;
  bytes[260] = bytes[261] = '\xff';
  const TokenSource source = TokenSource::open(write("a.bin", bytes));
  EXPECT_EQ(values(source.window(0, source.size())), (std::vector<std::int64_t>{7, 258, 65535}));

  write_token_shard(path("b.bin"), torch::tensor({7, 258, 65535}), 2);
  std::ifstream file(path("b.bin"), std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), bytes);
}

TEST_F(DataTest, FourByteTokensReachTheirWholeRange) {
  const at::Tensor tokens = torch::tensor({0L, 65536L, 128255L, 4294967295L}, torch::kLong);
  write_token_shard(path("a.bin"), tokens, 4);
  EXPECT_TRUE(torch::equal(TokenSource::open(path("a.bin")).window(0, 4), tokens));
}

TEST_F(DataTest, WindowsSpanShards) {
  const std::string spec =
      shard("0.bin", 0, 5) + "," + shard("1.bin", 5, 1, 4) + "," + shard("2.bin", 6, 4);
  const TokenSource source = TokenSource::open(spec);
  ASSERT_EQ(source.size(), 10);
  for (std::int64_t begin = 0; begin <= 10; ++begin) {
    for (std::int64_t count = 0; begin + count <= 10; ++count) {
      EXPECT_TRUE(torch::equal(source.window(begin, count), torch::arange(begin, begin + count)));
    }
  }
  EXPECT_THROW(source.window(8, 3), c10::Error);
  EXPECT_THROW(source.window(-1, 1), c10::Error);
}

TEST_F(DataTest, AGlobsFilesComeInAlphabeticalOrder) {
  shard("s_10.bin", 4, 2);
  shard("s_02.bin", 2, 2);
  shard("s_01.bin", 0, 2);
  const TokenSource source = TokenSource::open(path("s_*.bin"));
  EXPECT_TRUE(torch::equal(source.window(0, 6), torch::arange(6)));
}

TEST_F(DataTest, ASliceIsASourceOfItsOwn) {
  const TokenSource source = TokenSource::open(shard("a.bin", 0, 10));
  const TokenSource slice = source.slice(3, 9).slice(1, 4);
  EXPECT_EQ(slice.size(), 3);
  EXPECT_EQ(values(slice.window(0, 3)), (std::vector<std::int64_t>{4, 5, 6}));
  EXPECT_THROW(slice.window(1, 3), c10::Error);  // there are tokens behind it, but not its own
}

TEST_F(DataTest, BadFilesAreNamed) {
  EXPECT_HAS(error_of(path("nowhere.txt")), "nowhere.txt");
  EXPECT_HAS(error_of(path("nowhere.txt")), "No such file");
  EXPECT_HAS(error_of(path("*.none")), "no file matches");
  EXPECT_HAS(error_of(""), "no file named");
  EXPECT_HAS(error_of(","), "no file named");
  EXPECT_HAS(error_of(write("empty.txt", "")), "is empty");
  EXPECT_HAS(error_of(folder_.string()), "no file matches '" + folder_.string() + "/*.bin'");
  ASSERT_EQ(::mkfifo(path("pipe.txt").c_str(), 0600), 0);
  EXPECT_HAS(error_of(path("pipe.txt")), "no regular file");  // and does not wait for a writer
  EXPECT_HAS(error_of(write("a.txt", "abc") + "," + shard("a.bin", 0, 3)), "files of one kind");
}

TEST_F(DataTest, AFolderStandsForItsShards) {
  std::filesystem::create_directory(folder_ / "tokens");
  shard("tokens/b.bin", 3, 2);
  shard("tokens/a.bin", 0, 3);
  write("tokens/about.json", "{}");
  const TokenSource folder = TokenSource::open(path("tokens"));
  EXPECT_EQ(folder.size(), 5);
  EXPECT_TRUE(at::equal(folder.window(0, 5), TokenSource::open(path("tokens/*.bin")).window(0, 5)));
}

TEST_F(DataTest, AFileThatBecomesShorterIsAnError) {
  for (const std::string& path :
       {write("a.txt", std::string(100000, 'a')), shard("a.bin", 0, 50000)}) {
    const TokenSource source = TokenSource::open(path);
    const std::int64_t end = source.size() - 10;
    EXPECT_EQ(source.window(end, 10).size(0), 10);
    std::filesystem::resize_file(path, 20000);  // mapped, the next read would be a SIGBUS
    const std::string error = testing::error_of([&] { source.window(end, 10); });
    EXPECT_HAS(error, path);
    EXPECT_HAS(error, "is shorter now");
    EXPECT_EQ(source.window(0, 10).size(0), 10);
  }
}

TEST_F(DataTest, BadShardsAreNamed) {
  shard("good.bin", 0, 8);
  std::ifstream file(path("good.bin"), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(file)), {});

  EXPECT_HAS(error_of(write("a.bin", good.substr(0, 100))), "fewer than its 256-byte header");
  EXPECT_HAS(error_of(write("a.bin", good.substr(0, good.size() - 2))), "truncated");
  EXPECT_HAS(error_of(write("a.bin", good.substr(0, good.size() - 1))), "truncated");
  EXPECT_HAS(error_of(write("a.bin", good + "xx")), "should hold 8 tokens of 2 bytes but has 18");
  std::string bad = good;
  bad[0] = 'X';
  EXPECT_HAS(error_of(write("a.bin", bad)), "does not begin with OCTAVOTK");
  bad = good;
  bad[8] = 9;
  EXPECT_HAS(error_of(write("a.bin", bad)), "version 9");
  bad = good;
  bad[12] = 3;
  EXPECT_HAS(error_of(write("a.bin", bad)), "says 3 bytes a token");
  bad = good;
  std::memset(bad.data() + 16, 0xff, 8);  // a count whose product with the width overflows
  EXPECT_HAS(error_of(write("a.bin", bad)), "truncated or damaged");
  bad[16 + 7] = 0x7f;
  EXPECT_HAS(error_of(write("a.bin", bad)), "truncated or damaged");
  bad = good.substr(0, 256);
  std::memset(bad.data() + 16, 0, 8);
  EXPECT_HAS(error_of(write("a.bin", bad)), "holds no tokens");
}

TEST_F(DataTest, AShardMadeWithALargerVocabularyDoesNotOpen) {
  write_token_shard(path("a.bin"), torch::arange(0, 100), 2, 50257);
  const std::string error =
      octavo::testing::error_of([&] { TokenSource::open(path("a.bin"), 50256); });
  EXPECT_HAS(error, "a.bin' was made with a vocabulary of 50257 tokens, the model's is 50256");
  EXPECT_HAS(error, "set vocabulary to at least 50257");
  EXPECT_EQ(TokenSource::open(path("a.bin"), 50257).size(), 100);
  EXPECT_EQ(TokenSource::open(path("a.bin"), 50304).size(), 100);  // a padded vocabulary
  EXPECT_EQ(TokenSource::open(shard("unknown.bin", 0, 5), 256).size(), 5);

  // A run asks with its model's, for both parts.
  TrainConfig config;
  config.sequence = 8;
  config.train_data = path("a.bin");
  EXPECT_THROW(open_data(config), c10::Error);
  config.train_data = shard("b.bin", 0, 100);
  config.validation_data = path("a.bin");
  EXPECT_THROW(open_data(config), c10::Error);
  config.model.vocabulary = 50257;
  EXPECT_NO_THROW(open_data(config));
}

TEST_F(DataTest, TokensThatDoNotFitAreNotWritten) {
  EXPECT_THROW(write_token_shard(path("a.bin"), torch::tensor({65536}), 2), c10::Error);
  EXPECT_THROW(write_token_shard(path("a.bin"), torch::tensor({-1}), 4), c10::Error);
  EXPECT_THROW(write_token_shard(path("a.bin"), torch::tensor({100}), 2, 100), c10::Error);
  EXPECT_THROW(write_token_shard(path("a.bin"), torch::tensor({1}), 3), c10::Error);
  EXPECT_FALSE(std::filesystem::exists(path("a.bin")));
  EXPECT_THROW(write_token_shard("/dev/full", torch::tensor({1}), 2), c10::Error);
}

TEST_F(DataTest, TheEndIsHeldOut) {
  TrainConfig config;
  config.train_data = shard("a.bin", 0, 100);
  config.sequence = 8;
  config.validation_fraction = 0.15;
  const DataSplit split = open_data(config);
  EXPECT_EQ(split.train.size(), 85);
  EXPECT_EQ(split.validation.size(), 15);
  EXPECT_EQ(values(split.validation.window(0, 1))[0], 85);

  config.validation_data = shard("b.bin", 500, 20);
  const DataSplit named = open_data(config);
  EXPECT_EQ(named.train.size(), 100);
  EXPECT_EQ(named.validation.size(), 20);
}

TEST_F(DataTest, TooLittleTextIsAnError) {
  TrainConfig config;
  config.train_data = shard("a.bin", 0, 100);
  config.sequence = 90;
  EXPECT_THROW(open_data(config), c10::Error);  // 90 training tokens, 91 needed
  config.sequence = 89;
  EXPECT_NO_THROW(open_data(config));
  config.validation_fraction = 0.001;
  EXPECT_THROW(open_data(config), c10::Error);  // nothing held out
  for (double fraction : {0.0, 1.0, -0.5, 2.0}) {
    config.validation_fraction = fraction;
    EXPECT_THROW(open_data(config), c10::Error) << fraction;
  }
}

TEST_F(DataTest, WindowsDependOnSeedStepAndMicroBatchOnly) {
  const TokenSource source = TokenSource::open(shard("a.bin", 0, 5000));
  const BatchSampler::Options options{.batch = 4, .sequence = 16, .seed = 3, .vocabulary = 5000};
  const BatchSampler sampler(source, options);
  const Batch batch = sampler.next(7, 1);
  ASSERT_EQ(batch.tokens.sizes(), (std::vector<std::int64_t>{4, 16}));
  ASSERT_EQ(batch.targets.sizes(), (std::vector<std::int64_t>{4, 16}));
  // The shard counts up, so each row does, and the targets are one ahead.
  EXPECT_TRUE(torch::equal(batch.targets, batch.tokens + 1));
  EXPECT_TRUE(
      torch::equal(batch.tokens - batch.tokens.narrow(1, 0, 1), torch::arange(16).expand({4, 16})));

  sampler.next(0);  // drawing others in between changes nothing
  EXPECT_TRUE(torch::equal(BatchSampler(source, options).next(7, 1).tokens, batch.tokens));
  BatchSampler::Options other = options;
  other.seed = 4;
  std::set<std::int64_t> starts;
  for (const Batch& b : {batch, sampler.next(7, 0), sampler.next(8, 1), sampler.next(1, 7),
                         BatchSampler(source, other).next(7, 1)}) {
    for (std::int64_t row = 0; row < 4; ++row) starts.insert(b.tokens[row][0].item<std::int64_t>());
  }
  EXPECT_GT(starts.size(), 17u);  // 20 draws of 4984: two alike are rare, three are a bug
}

TEST_F(DataTest, TwoMicroBatchesAreOneOfTwiceTheRows) {
  const TokenSource source = TokenSource::open(shard("a.bin", 0, 5000));
  const BatchSampler small(source, {.batch = 4, .sequence = 16, .seed = 3, .vocabulary = 5000});
  const BatchSampler large(source, {.batch = 8, .sequence = 16, .seed = 3, .vocabulary = 5000});
  EXPECT_TRUE(torch::equal(torch::cat({small.next(5, 0).tokens, small.next(5, 1).tokens}),
                           large.next(5).tokens));
}

TEST_F(DataTest, TrainingReachesEveryWindowAndNoHeldOutToken) {
  const TokenSource source = TokenSource::open(shard("a.bin", 0, 40)).slice(0, 20);
  const BatchSampler sampler(source, {.batch = 8, .sequence = 16, .seed = 1, .vocabulary = 40});
  std::set<std::int64_t> starts;
  for (std::int64_t step = 0; step < 20; ++step) {
    const Batch batch = sampler.next(step);
    EXPECT_LT(batch.targets.max().item<std::int64_t>(), 20);
    for (std::int64_t start : values(batch.tokens.select(1, 0))) starts.insert(start);
  }
  EXPECT_EQ(starts, (std::set<std::int64_t>{0, 1, 2, 3}));
}

TEST_F(DataTest, ATokenBeyondTheVocabularyIsNamed) {
  const TokenSource source = TokenSource::open(shard("a.bin", 250, 20));
  const BatchSampler sampler(source, {.batch = 1, .sequence = 19, .seed = 1, .vocabulary = 256});
  try {
    sampler.next(0);
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_HAS(std::string(error.what()), "token 269");
    EXPECT_HAS(std::string(error.what()), "at least 270");
  }
  const ValidationBatches batches(source, {.batch = 1, .sequence = 4, .vocabulary = 256});
  EXPECT_THROW(batches.batch(2), c10::Error);
}

TEST_F(DataTest, ValidationPredictsEveryTokenOnce) {
  for (std::int64_t tokens : {2, 4, 5, 6, 9, 17, 18, 33, 100}) {
    for (std::int64_t batch : {1, 2, 3}) {
      const TokenSource source = TokenSource::open(shard("a.bin", 0, tokens));
      const ValidationBatches batches(source, {.batch = batch, .sequence = 4, .vocabulary = 100});
      std::vector<std::int64_t> predicted;
      for (std::int64_t i = 0; i < batches.size(); ++i) {
        const Batch b = batches.batch(i);
        EXPECT_LE(b.tokens.size(0), batch);
        EXPECT_LE(b.tokens.size(1), 4);
        EXPECT_TRUE(torch::equal(b.targets, b.tokens + 1));
        for (std::int64_t target : values(b.targets)) predicted.push_back(target);
      }
      EXPECT_EQ(predicted, values(torch::arange(1, tokens)))
          << tokens << " tokens, batch " << batch;
      EXPECT_THROW(batches.batch(batches.size()), c10::Error);
    }
  }
}

TEST_F(DataTest, ValidationCanBeLimited) {
  const TokenSource source = TokenSource::open(shard("a.bin", 0, 100));
  const ValidationBatches two(source, {.batch = 2, .sequence = 4, .vocabulary = 100, .limit = 2});
  EXPECT_EQ(two.size(), 2);
  const ValidationBatches all(source, {.batch = 2, .sequence = 4, .vocabulary = 100, .limit = 999});
  EXPECT_EQ(all.size(), 13);  // 24 windows in 12 batches, and the 3 tokens left
}

}  // namespace
}  // namespace octavo::train
