#include "octavo/train/token_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
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
  const T* tokens = reinterpret_cast<const T*>(data);  // the header keeps the alignment
  std::copy(tokens, tokens + count, out);
}

}  // namespace

bool is_shard(const std::string& path) { return path.ends_with(".bin"); }

TokenFile::TokenFile(const std::string& path) : path_(path) {
  // Not to wait for the writer of a named pipe, which is refused below.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TORCH_CHECK(fd >= 0, "data: cannot open '", path, "': ", std::strerror(errno),
              "; give the path of a text file or of .bin token shards");
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(fd);
    TORCH_CHECK(false, "data: '", path, "' is no regular file; for a folder of shards give '", path,
                "/*.bin'");
  }
  size_ = static_cast<std::int64_t>(status.st_size);
  if (size_ == 0) {
    ::close(fd);
    TORCH_CHECK(false, "data: '", path, "' is empty; give a file with text or tokens in it");
  }
  address_ = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  TORCH_CHECK(address_ != MAP_FAILED, "data: cannot map '", path, "': ", std::strerror(error),
              "; copy it to a local file system, or raise the memory limit (ulimit -v)");
  if (is_shard(path)) {
    try {
      read_header();
    } catch (...) {
      ::munmap(address_, static_cast<std::size_t>(size_));
      throw;
    }
  }
  tokens_ = (size_ - offset_) / width_;
}

TokenFile::~TokenFile() { ::munmap(address_, static_cast<std::size_t>(size_)); }

void TokenFile::read(std::int64_t begin, std::int64_t count, std::int64_t* out) const {
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

void TokenFile::read_header() {
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
