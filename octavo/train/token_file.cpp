#include "octavo/train/token_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

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

template <typename T>
void widen(const char* data, std::int64_t count, std::int64_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    out[i] = static_cast<std::int64_t>(token);
  }
}

}  // namespace

bool is_shard(const std::string& path) { return path.ends_with(".bin"); }

TokenFile::TokenFile(const std::string& path) : path_(path) {
  try {
    open_and_check();
  } catch (...) {
    if (file_ >= 0) ::close(file_);
    throw;
  }
}

TokenFile::~TokenFile() { ::close(file_); }

void TokenFile::open_and_check() {
  // Not to wait for the writer of a named pipe, which is refused below.
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TORCH_CHECK(file_ >= 0, "data: cannot open '", path_, "': ", std::strerror(errno),
              errno == EMFILE ? "; raise the limit of open files (ulimit -n)"
                              : "; give the path of a text file or of .bin token shards");
  struct stat status {};
  const bool known = ::fstat(file_, &status) == 0;
  TORCH_CHECK(known && S_ISREG(status.st_mode), "data: '", path_,
              "' is no regular file; for a folder of shards give '", path_, "/*.bin'");
  size_ = static_cast<std::int64_t>(status.st_size);
  TORCH_CHECK(size_ > 0, "data: '", path_, "' is empty; give a file with text or tokens in it");
  if (is_shard(path_)) read_header();
  tokens_ = (size_ - offset_) / width_;
}

void TokenFile::read_bytes(void* to, std::int64_t bytes, std::int64_t offset) const {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(file_, next, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got >= 0, "data: cannot read '", path_, "': ", std::strerror(errno),
                "; copy it to another disk");
    TORCH_CHECK(got > 0, "data: '", path_, "' had ", size_,
                " bytes when it was opened and is shorter now; restore it, then go on with "
                "resume = true, and leave a run's data alone");
    next += got;
    offset += got;
    bytes -= got;
  }
}

void TokenFile::read(std::int64_t begin, std::int64_t count, std::int64_t* out) const {
  // Into the end of `out`, widened from its beginning: a token is read before it is overwritten.
  char* data =
      reinterpret_cast<char*>(out) + count * (static_cast<std::int64_t>(sizeof(*out)) - width_);
  read_bytes(data, count * width_, offset_ + begin * width_);
  switch (width_) {
    case 1:
      return widen<std::uint8_t>(data, count, out);
    case 2:
      return widen<std::uint16_t>(data, count, out);
    default:
      return widen<std::uint32_t>(data, count, out);
  }
}

void TokenFile::read_header() {
  TORCH_CHECK(size_ >= kShardHeaderBytes, "data: shard '", path_, "' has ", size_,
              " bytes, fewer than its ", kShardHeaderBytes,
              "-byte header; it is truncated: copy it "
              "again or make it anew");
  ShardHeader header;
  read_bytes(&header, sizeof(header), 0);
  TORCH_CHECK(std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0, "data: shard '", path_,
              "' does not begin with OCTAVOTK, so it is no Octavo token shard; write one with "
              "write_token_shard(), or name a text file without .bin to read its bytes");
  TORCH_CHECK(header.version == kShardVersion, "data: shard '", path_, "' has version ",
              header.version, ", this build reads version ", kShardVersion, "; make it anew");
  TORCH_CHECK(header.bytes_per_token == 2 || header.bytes_per_token == 4, "data: shard '", path_,
              "' says ", header.bytes_per_token,
              " bytes a token; expected 2 (uint16) or 4 (uint32): make it anew");
  width_ = header.bytes_per_token;
  offset_ = kShardHeaderBytes;
  vocabulary_ = header.vocabulary;
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

void write_token_shard(const std::string& path, const at::Tensor& tokens,
                       std::int64_t bytes_per_token, std::int64_t vocabulary) {
  TORCH_CHECK(bytes_per_token == 2 || bytes_per_token == 4,
              "bytes_per_token: expected 2 (uint16) or 4 (uint32), got ", bytes_per_token,
              "; give 2 for a vocabulary of up to 65536, otherwise 4");
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
  TORCH_CHECK(file != nullptr, "data: cannot write '", path, "': ", std::strerror(errno),
              "; check the folder and its permissions");
  bool good = std::fwrite(&header, sizeof(header), 1, file) == 1;
  good = std::fwrite(payload.data(), 1, payload.size(), file) == payload.size() && good;
  good = std::fclose(file) == 0 && good;
  TORCH_CHECK(good, "data: could not write all of '", path, "': ", std::strerror(errno),
              "; free some space and write it again");
}

}  // namespace octavo::train
