#include "octavo/train/data.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "octavo/train/rng.h"
#include "octavo/train/token_file.h"

namespace octavo::train {

namespace {

// The files a spec names, in its order.
std::vector<std::string> expand(const std::string& spec) {
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin <= spec.size();) {
    const std::size_t comma = std::min(spec.find(',', begin), spec.size());
    std::string item = spec.substr(begin, comma - begin);
    begin = comma + 1;
    if (item.empty()) continue;
    std::error_code ignored;
    if (std::filesystem::is_directory(item, ignored)) item += "/*.bin";
    if (item.find_first_of("*?[") == std::string::npos) {
      paths.push_back(item);
      continue;
    }
    glob_t found{};
    const int result = ::glob(item.c_str(), 0, nullptr, &found);
    for (std::size_t i = 0; result == 0 && i < found.gl_pathc; ++i)
      paths.push_back(found.gl_pathv[i]);
    ::globfree(&found);
    TORCH_CHECK(result == 0, "data: no file matches '", item,
                "'; check the pattern (it is relative to "
                "the folder the command runs in)");
  }
  TORCH_CHECK(!paths.empty(),
              "data: no file named; set train_data to a text file or to .bin shards");
  return paths;
}

void check_vocabulary(const at::Tensor& tokens, std::int64_t vocabulary,
                      const TokenSource& source) {
  const std::int64_t* data = tokens.const_data_ptr<std::int64_t>();
  const std::int64_t largest = *std::max_element(data, data + tokens.numel());
  TORCH_CHECK(largest < vocabulary, "data: '", source.name(), "' holds token ", largest,
              " but the model's vocabulary is ", vocabulary, "; set vocabulary to at least ",
              largest + 1, " or use text made for this vocabulary");
}

void check_sizes(std::int64_t batch, std::int64_t sequence) {
  TORCH_CHECK(batch > 0, "batch: expected at least 1, got ", batch);
  TORCH_CHECK(sequence > 0, "sequence: expected at least 1, got ", sequence);
}

}  // namespace

struct TokenSource::Files {
  std::string name;
  std::vector<std::unique_ptr<TokenFile>> files;
  std::vector<std::int64_t> ends;  // of each file in the stream
};

TokenSource::TokenSource(std::shared_ptr<const Files> files, std::int64_t begin, std::int64_t end)
    : files_(std::move(files)), begin_(begin), end_(end) {}

TokenSource TokenSource::open(const std::string& spec, std::int64_t vocabulary) {
  const std::vector<std::string> paths = expand(spec);
  auto files = std::make_shared<Files>();
  files->name = spec;
  std::int64_t end = 0;
  for (const std::string& path : paths) {
    TORCH_CHECK(is_shard(path) == is_shard(paths.front()), "data: '", paths.front(), "' and '",
                path, "' are text and token shard; give files of one kind");
    files->files.push_back(std::make_unique<TokenFile>(path));
    const std::uint64_t made_with = files->files.back()->vocabulary();
    TORCH_CHECK(made_with <= static_cast<std::uint64_t>(vocabulary), "data: shard '", path,
                "' was made with a vocabulary of ", made_with, " tokens, the model's is ",
                vocabulary, "; set vocabulary to at least ", made_with,
                " or name data made for this model");
    end += files->files.back()->tokens();
    files->ends.push_back(end);
  }
  return TokenSource(std::move(files), 0, end);
}

const std::string& TokenSource::name() const { return files_->name; }

void TokenSource::read(std::int64_t begin, std::int64_t count, std::int64_t* out) const {
  TORCH_CHECK(begin >= 0 && count >= 0 && begin <= size() - count, "data: tokens [", begin, ", ",
              begin + count, ") asked of '", name(), "', which has ", size());
  std::int64_t at = begin_ + begin;
  const std::vector<std::int64_t>& ends = files_->ends;
  std::size_t file = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin();
  while (count > 0) {
    const std::int64_t start = file == 0 ? 0 : ends[file - 1];
    const std::int64_t here = std::min(count, ends[file] - at);
    files_->files[file]->read(at - start, here, out);
    at += here;
    out += here;
    count -= here;
    ++file;
  }
}

at::Tensor TokenSource::window(std::int64_t begin, std::int64_t count) const {
  at::Tensor tokens = at::empty({count}, at::kLong);
  read(begin, count, tokens.mutable_data_ptr<std::int64_t>());
  return tokens;
}

TokenSource TokenSource::slice(std::int64_t begin, std::int64_t end) const {
  TORCH_CHECK(0 <= begin && begin <= end && end <= size(), "data: slice [", begin, ", ", end,
              ") of '", name(), "', which has ", size(), " tokens");
  return TokenSource(files_, begin_ + begin, begin_ + end);
}

DataSplit open_data(const TrainConfig& config) {
  const TokenSource all = TokenSource::open(config.train_data, config.model.vocabulary);
  const std::int64_t window = config.sequence + 1;
  auto check = [&](const TokenSource& source, const char* part, std::int64_t least,
                   const char* repair) {
    TORCH_CHECK(source.size() >= least, "data: the ", part, " part of '", source.name(), "' has ",
                source.size(), " tokens, fewer than the ", least, " it needs; ", repair);
  };
  const char* shorten = "give more text or shorten sequence";
  if (!config.validation_data.empty()) {
    const TokenSource validation =
        TokenSource::open(config.validation_data, config.model.vocabulary);
    check(all, "training", window, shorten);
    check(validation, "validation", 2, "give more text");
    return {all, validation};
  }
  TORCH_CHECK(config.validation_fraction > 0.0 && config.validation_fraction < 1.0,
              "validation_fraction: expected a number between 0 and 1, got ",
              config.validation_fraction, "; or name a file in validation_data");
  const auto held_out =
      static_cast<std::int64_t>(static_cast<double>(all.size()) * config.validation_fraction);
  const DataSplit split{all.slice(0, all.size() - held_out),
                        all.slice(all.size() - held_out, all.size())};
  check(split.train, "training", window, shorten);
  check(split.validation, "validation", 2, "give more text or enlarge validation_fraction");
  return split;
}

MicroBatches MicroBatches::of(const Batch& stacked) {
  return {.count = stacked.tokens.size(0), .read = [stacked](std::int64_t i) {
            return Batch{stacked.tokens.select(0, i), stacked.targets.select(0, i)};
          }};
}

BatchSampler::BatchSampler(TokenSource source, const Options& options)
    : source_(std::move(source)), options_(options) {
  check_sizes(options.batch, options.sequence);
  TORCH_CHECK(source_.size() > options.sequence, "data: '", source_.name(), "' has ",
              source_.size(), " tokens, a window needs ", options.sequence + 1,
              "; give more text or shorten sequence");
}

Batch BatchSampler::next(std::int64_t step, std::int64_t micro_batch) const {
  const std::int64_t window = options_.sequence + 1;
  const auto starts = static_cast<std::uint64_t>(source_.size() - options_.sequence);
  at::Tensor windows = at::empty({options_.batch, window}, at::kLong);
  std::int64_t* out = windows.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < options_.batch; ++row) {
    const std::uint64_t start =
        random_below(starts, options_.seed,
                     {static_cast<std::uint64_t>(step),
                      static_cast<std::uint64_t>(micro_batch * options_.batch + row)});
    source_.read(static_cast<std::int64_t>(start), window, out + row * window);
  }
  check_vocabulary(windows, options_.vocabulary, source_);
  return {windows.narrow(1, 0, options_.sequence).contiguous(),
          windows.narrow(1, 1, options_.sequence).contiguous()};
}

ValidationBatches::ValidationBatches(TokenSource source, const Options& options)
    : source_(std::move(source)), options_(options) {
  check_sizes(options.batch, options.sequence);
  TORCH_CHECK(source_.size() > 1, "data: '", source_.name(), "' has ", source_.size(),
              " tokens to validate on, at least 2 are needed; give more text");
}

std::int64_t ValidationBatches::size() const {
  const std::int64_t predictions = source_.size() - 1;
  const std::int64_t windows = predictions / options_.sequence;
  const std::int64_t full = (windows + options_.batch - 1) / options_.batch;
  const std::int64_t all = full + (predictions % options_.sequence != 0 ? 1 : 0);
  return options_.limit > 0 ? std::min(all, options_.limit) : all;
}

Batch ValidationBatches::batch(std::int64_t index) const {
  TORCH_CHECK(index >= 0 && index < size(), "index: expected a batch below ", size(), ", got ",
              index);
  const std::int64_t windows = (source_.size() - 1) / options_.sequence;
  const std::int64_t first = index * options_.batch;
  std::int64_t rows = std::min(options_.batch, windows - first);
  std::int64_t length = options_.sequence;
  std::int64_t begin = first * options_.sequence;
  if (rows <= 0) {  // the rest
    rows = 1;
    begin = windows * options_.sequence;
    length = source_.size() - 1 - begin;
  }
  const at::Tensor tokens = source_.window(begin, rows * length + 1);
  check_vocabulary(tokens, options_.vocabulary, source_);
  return {tokens.narrow(0, 0, rows * length).view({rows, length}),
          tokens.narrow(0, 1, rows * length).view({rows, length})};
}

}  // namespace octavo::train
