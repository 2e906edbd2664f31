#include "octavo/models/kv_cache.h"

namespace octavo::models {

KvCache::KvCache(const LlamaConfig& config, std::int64_t batch, std::int64_t capacity,
                 const at::TensorOptions& options)
    : capacity_(capacity) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::vector<std::int64_t> sizes = {batch, capacity, config.kv_heads, config.head_dim()};
    keys_.push_back(at::empty(sizes, options));
    values_.push_back(at::empty(sizes, options));
  }
}

std::pair<at::Tensor, at::Tensor> KvCache::append(std::int64_t layer, const at::Tensor& keys,
                                                  const at::Tensor& values) {
  const std::int64_t added = keys.size(1);
  TORCH_CHECK(length_ + added <= capacity_, "KvCache: holds ", length_, " positions and got ",
              added, " more, with room for ", capacity_, "; make it larger or clear it");
  at::Tensor &all_keys = keys_.at(layer), &all_values = values_.at(layer);
  all_keys.narrow(1, length_, added).copy_(keys);
  all_values.narrow(1, length_, added).copy_(values);
  return {all_keys.narrow(1, 0, length_ + added), all_values.narrow(1, 0, length_ + added)};
}

}  // namespace octavo::models
