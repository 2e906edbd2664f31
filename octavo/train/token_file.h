#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace octavo::train {

// Token shards (.bin), little-endian. A 256-byte header, then the tokens:
//   offset  0  8 bytes  magic "OCTAVOTK"
//           8  uint32   version, 1
//          12  uint32   bytes per token: 2 (uint16) or 4 (uint32)
//          16  uint64   number of tokens
//          24  uint64   vocabulary the tokens were made with, 0 where unknown
//          32  zeros up to 256
inline constexpr std::int64_t kShardHeaderBytes = 256;
inline constexpr std::uint32_t kShardVersion = 1;

/// Whether `path` names a token shard (it ends in .bin) and not a text file.
bool is_shard(const std::string& path);

/// One text file (each byte is a token) or token shard, open as long as this lives. Read, not
/// mapped: a file that somebody truncates meanwhile is an error and not a signal.
class TokenFile {
 public:
  /// Errors, naming the file: missing, empty, no regular file; a shard's magic, version, token
  /// width or length that is not what its header says (truncated).
  explicit TokenFile(const std::string& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  std::int64_t tokens() const { return tokens_; }
  /// What a shard's tokens were made with, as its header says; 0: unknown, and for text.
  std::uint64_t vocabulary() const { return vocabulary_; }

  /// Tokens [begin, begin + count) to `out`; the range is the caller's to check. Errors, naming the
  /// file: it has become shorter; the system cannot read it.
  void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const;

 private:
  void open_and_check();
  void read_header();
  void read_bytes(void* to, std::int64_t bytes, std::int64_t offset) const;

  std::string path_;
  int file_ = -1;
  std::int64_t size_ = 0;    // bytes
  std::int64_t offset_ = 0;  // of the first token
  std::int64_t width_ = 1;   // bytes a token
  std::int64_t tokens_ = 0;
  std::uint64_t vocabulary_ = 0;
};

/// Writes `tokens` (any integer dtype, 1-D) as one shard. Errors: a token that is negative, at
/// least `vocabulary` (where that is not 0) or too large for `bytes_per_token`; a failed write.
void write_token_shard(const std::string& path, const at::Tensor& tokens,
                       std::int64_t bytes_per_token, std::int64_t vocabulary = 0);

}  // namespace octavo::train
