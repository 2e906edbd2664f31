#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octavo/train/config.h"

namespace octavo::train {

/// A stream of tokens in files: text files (each byte is a token) or token shards
/// (names that end in .bin). Several files are one stream in the order given; a glob's files come
/// in alphabetical order. Copies share the open files.
class TokenSource {
 public:
  static constexpr std::int64_t kAnyVocabulary = std::numeric_limits<std::int64_t>::max();

  /// `spec`: a path, a folder of shards (its *.bin), a glob, or a comma-separated list of these.
  /// `vocabulary`: the model's, V; without it shards of any vocabulary open. Errors, naming the
  /// file: missing, empty, no regular file, a pattern that matches nothing, a shard's magic,
  /// version, token width or length that is not what its header says (truncated), a shard made with
  /// a larger vocabulary than V, text and shards mixed.
  static TokenSource open(const std::string& spec, std::int64_t vocabulary = kAnyVocabulary);

  std::int64_t size() const { return end_ - begin_; }  ///< tokens
  const std::string& name() const;                     ///< spec, for messages

  /// Tokens [begin, begin + count), (count) int64; may span files. Out of range: an error.
  at::Tensor window(std::int64_t begin, std::int64_t count) const;
  /// The same, written to `out`, which has room for `count`.
  void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const;

  /// Tokens [begin, end) of this source as a source of its own; copies nothing.
  TokenSource slice(std::int64_t begin, std::int64_t end) const;

 private:
  struct Files;
  TokenSource(std::shared_ptr<const Files> files, std::int64_t begin, std::int64_t end);

  std::shared_ptr<const Files> files_;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

struct DataSplit {
  TokenSource train;
  TokenSource validation;
};

/// config.train_data and config.validation_data opened; without the latter, the last
/// validation_fraction of the training tokens is held out and never sampled. Errors: as
/// TokenSource::open; a part shorter than one window of sequence + 1 tokens (which says how many
/// tokens there are and what to shorten).
DataSplit open_data(const TrainConfig& config);

/// One micro-batch: targets[b,t] is the token after tokens[b,t].
struct Batch {
  at::Tensor tokens;   ///< (B, T) int64
  at::Tensor targets;  ///< (B, T) int64

  Batch to(c10::Device device) const { return {tokens.to(device), targets.to(device)}; }
};

/// The micro-batches of one step, which reads them one after the other: nobody holds them all.
struct MicroBatches {
  std::int64_t count = 1;  ///< A
  /// Micro-batch i of [0, A), in order; nothing drops the step.
  std::function<std::optional<Batch>(std::int64_t i)> read;

  static MicroBatches of(const Batch& stacked);  ///< those of tensors (A, B, T)
};

/// Random windows of the training tokens. The start of a row depends on (seed, step, micro_batch *
/// B + row) and nothing else: any step can be drawn at any time, so a resumed run sees the data of
/// an uninterrupted one, and two micro-batches of 4 rows are one of 8.
class BatchSampler {
 public:
  struct Options {
    std::int64_t batch = 0;     ///< B
    std::int64_t sequence = 0;  ///< T
    std::uint64_t seed = 0;
    std::int64_t vocabulary = 0;  ///< V
  };
  BatchSampler(TokenSource source, const Options& options);

  /// Errors: a token that is not below the vocabulary names the file and the token.
  Batch next(std::int64_t step, std::int64_t micro_batch = 0) const;

 private:
  TokenSource source_;
  Options options_;
};

/// The held-out tokens as fixed consecutive windows: window i predicts tokens iT+1 ... (i+1)T, so
/// every token but the first is predicted exactly once. The last tokens, fewer than T, make a
/// batch (1, rest) of their own.
class ValidationBatches {
 public:
  struct Options {
    std::int64_t batch = 0;       ///< B, the last batch may have fewer rows
    std::int64_t sequence = 0;    ///< T
    std::int64_t vocabulary = 0;  ///< V
    std::int64_t limit = 0;       ///< at most that many batches; 0: all
  };
  ValidationBatches(TokenSource source, const Options& options);

  std::int64_t size() const;  ///< batches
  Batch batch(std::int64_t index) const;

 private:
  TokenSource source_;
  Options options_;
};

}  // namespace octavo::train
