#include "octavo/train/data.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "octavo/train/rng.h"

namespace octavo::train {

static_assert(std::endian::native == std::endian::little, "token shards are little-endian");

namespace {

constexpr char kMagic[8] = {'O', 'C', 'T', 'A', 'V', 'O', 'T', 'K'};

struct ShardHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t bytes_per_token;
  std::uint64_t tokens;
  std::uint64_t vocabulary;
  unsigned char zeros[kShardHeaderBytes - 32];
};
static_assert(sizeof(ShardHeader) == kShardHeaderBytes);

bool is_shard(const std::string& path) { return path.ends_with(".bin"); }

// One file, mapped read-only.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) : path_(path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    TORCH_CHECK(fd >= 0, "data: cannot open '", path, "': ", std::strerror(errno),
                "; give the path of a text file or of .bin token shards");
    struct stat status {};
    const bool known = ::fstat(fd, &status) == 0;
    if (!known || !S_ISREG(status.st_mode)) {
      ::close(fd);
      TORCH_CHECK(false, "data: '", path, "' is no regular file; for a folder of shards give '",
                  path, "/*.bin'");
    }
    size_ = static_cast<std::int64_t>(status.st_size);
    if (size_ == 0) {
      ::close(fd);
      TORCH_CHECK(false, "data: '", path, "' is empty; give a file with text or tokens in it");
    }
    address_ = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    TORCH_CHECK(address_ != MAP_FAILED, "data: cannot map '", path, "': ", std::strerror(error));
    if (is_shard(path)) read_header();
    tokens_ = (size_ - offset_) / width_;
  }
  ~MappedFile() { ::munmap(address_, static_cast<std::size_t>(size_)); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::int64_t tokens() const { return tokens_; }

  // Tokens [begin, begin + count) to out.
  void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const {
    const char* data = static_cast<const char*>(address_) + offset_ + begin * width_;
    switch (width_) {
      case 1:
        return widen<std::uint8_t>(data, count, out);
      case 2:
        return widen<std::uint16_t>(data, count, out);
      default:
        return widen<std::uint32_t>(data, count, out);
    }
  }

 private:
  template <typename T>
  static void widen(const char* data, std::int64_t count, std::int64_t* out) {
    const T* tokens = reinterpret_cast<const T*>(data);  // the header keeps the alignment
    std::copy(tokens, tokens + count, out);
  }

  void read_header() {
    try {
      check_header();
    } catch (...) {
      ::munmap(address_, static_cast<std::size_t>(size_));
      throw;
    }
  }

  void check_header() {
    TORCH_CHECK(size_ >= kShardHeaderBytes, "data: shard '", path_, "' has ", size_,
                " bytes, fewer than its ", kShardHeaderBytes,
                "-byte header; it is truncated: copy it "
                "again or make it anew");
    ShardHeader header;
    std::memcpy(&header, address_, sizeof(header));
    TORCH_CHECK(std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0, "data: shard '", path_,
                "' does not begin with OCTAVOTK, so it is no Octavo token shard; write one with "
                "write_token_shard(), or name a text file without .bin to read its bytes");
    TORCH_CHECK(header.version == kShardVersion, "data: shard '", path_, "' has version ",
                header.version, ", this build reads version ", kShardVersion, "; make it anew");
    TORCH_CHECK(header.bytes_per_token == 2 || header.bytes_per_token == 4, "data: shard '", path_,
                "' says ", header.bytes_per_token,
                " bytes a token; expected 2 (uint16) or 4 (uint32)");
    width_ = header.bytes_per_token;
    offset_ = kShardHeaderBytes;
    TORCH_CHECK(header.tokens > 0, "data: shard '", path_, "' holds no tokens; leave it out");
    const std::int64_t payload = size_ - offset_;
    // Compared without multiplying the header's number, which may be anything.
    TORCH_CHECK(
        payload % width_ == 0 && header.tokens == static_cast<std::uint64_t>(payload / width_),
        "data: shard '", path_, "' should hold ", header.tokens, " tokens of ", width_,
        " bytes but has ", payload,
        " bytes after its header; it is truncated or damaged: copy "
        "it again or make it anew");
  }

  std::string path_;
  void* address_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t offset_ = 0;
  std::int64_t width_ = 1;
  std::int64_t tokens_ = 0;
};

// The files a spec names, in its order.
std::vector<std::string> expand(const std::string& spec) {
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin <= spec.size();) {
    const std::size_t comma = std::min(spec.find(',', begin), spec.size());
    const std::string item = spec.substr(begin, comma - begin);
    begin = comma + 1;
    if (item.empty()) continue;
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
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<std::int64_t> ends;  // of each file in the stream
};

TokenSource::TokenSource(std::shared_ptr<const Files> files, std::int64_t begin, std::int64_t end)
    : files_(std::move(files)), begin_(begin), end_(end) {}

TokenSource TokenSource::open(const std::string& spec) {
  const std::vector<std::string> paths = expand(spec);
  auto files = std::make_shared<Files>();
  files->name = spec;
  std::int64_t end = 0;
  for (const std::string& path : paths) {
    TORCH_CHECK(is_shard(path) == is_shard(paths.front()), "data: '", paths.front(), "' and '",
                path, "' are text and token shard; give files of one kind");
    files->files.push_back(std::make_unique<MappedFile>(path));
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

void write_token_shard(const std::string& path, const at::Tensor& tokens,
                       std::int64_t bytes_per_token, std::int64_t vocabulary) {
  TORCH_CHECK(bytes_per_token == 2 || bytes_per_token == 4,
              "bytes_per_token: expected 2 (uint16) or 4 (uint32), got ", bytes_per_token);
  const at::Tensor wide = tokens.to(at::kLong).contiguous();
  const std::int64_t* data = wide.const_data_ptr<std::int64_t>();
  std::int64_t limit = std::int64_t{1} << (8 * bytes_per_token);
  if (vocabulary > 0) limit = std::min(limit, vocabulary);
  std::string payload(static_cast<std::size_t>(wide.numel() * bytes_per_token), '\0');
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    TORCH_CHECK(data[i] >= 0 && data[i] < limit, "tokens: token ", data[i], " at position ", i,
                " is outside [0, ", limit, "); use 4 bytes a token or the right vocabulary");
    std::memcpy(payload.data() + i * bytes_per_token, &data[i],
                static_cast<std::size_t>(bytes_per_token));
  }
  ShardHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kShardVersion;
  header.bytes_per_token = static_cast<std::uint32_t>(bytes_per_token);
  header.tokens = static_cast<std::uint64_t>(wide.numel());
  header.vocabulary = static_cast<std::uint64_t>(vocabulary);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  TORCH_CHECK(file != nullptr, "data: cannot write '", path, "': ", std::strerror(errno));
  bool good = std::fwrite(&header, sizeof(header), 1, file) == 1;
  good = std::fwrite(payload.data(), 1, payload.size(), file) == payload.size() && good;
  good = std::fclose(file) == 0 && good;
  TORCH_CHECK(good, "data: could not write all of '", path, "': ", std::strerror(errno),
              "; free some space and write it again");
}

DataSplit open_data(const TrainConfig& config) {
  const TokenSource all = TokenSource::open(config.train_data);
  const std::int64_t window = config.sequence + 1;
  auto check = [&](const TokenSource& source, const char* part, std::int64_t least,
                   const char* repair) {
    TORCH_CHECK(source.size() >= least, "data: the ", part, " part of '", source.name(), "' has ",
                source.size(), " tokens, fewer than the ", least, " it needs; ", repair);
  };
  const char* shorten = "give more text or shorten sequence";
  if (!config.validation_data.empty()) {
    const TokenSource validation = TokenSource::open(config.validation_data);
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
