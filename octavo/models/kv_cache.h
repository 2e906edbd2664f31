#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "octavo/models/llama_config.h"

namespace octavo::models {

/// Keys and values of the positions a decoder has seen, so that the next ones need only
/// themselves. For generation: appending writes in place and is not differentiable.
class KvCache {
 public:
  /// Room for `capacity` positions of `batch` sequences. options: dtype and device of the
  /// activations.
  KvCache(const LlamaConfig& config, std::int64_t batch, std::int64_t capacity,
          const at::TensorOptions& options);

  std::int64_t capacity() const { return capacity_; }
  /// Positions held.
  std::int64_t length() const { return length_; }

  /// Writes keys and values (B, T, H_kv, P) of one layer after the positions held and returns all
  /// of them, (B, length + T, H_kv, P), as views. Errors: more positions than there is room for.
  std::pair<at::Tensor, at::Tensor> append(std::int64_t layer, const at::Tensor& keys,
                                           const at::Tensor& values);

  /// After all layers appended: the T positions count as held.
  void advance(std::int64_t positions) { length_ += positions; }
  /// Forgets every position.
  void clear() { length_ = 0; }

 private:
  std::int64_t capacity_;
  std::int64_t length_ = 0;
  std::vector<at::Tensor> keys_, values_;  // each (B, capacity, H_kv, P), one for each layer
};

}  // namespace octavo::models
