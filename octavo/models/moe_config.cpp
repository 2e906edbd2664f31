#include "octavo/models/moe_config.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace octavo::models {
namespace {

void check_at_least(const char* field, std::int64_t value, std::int64_t low) {
  TORCH_CHECK(value >= low, field, " is ", value, "; it must be at least ", low);
}

}  // namespace

std::int64_t MoeConfig::moe_layers(std::int64_t layers) const {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) count += is_moe_layer(layer);
  return count;
}

void MoeConfig::validate(std::int64_t layers) const {
  check_at_least("experts", experts, 0);
  if (experts == 0) return;
  check_at_least("top_k", top_k, 1);
  TORCH_CHECK(top_k <= experts, "top_k is ", top_k, "; it must be at most experts, which is ",
              experts);
  check_at_least("expert_hidden", hidden, 1);
  check_at_least("shared_hidden", shared_hidden, 0);
  check_at_least("moe_every", every, 1);
  check_at_least("dense_first", dense_first, 0);
  TORCH_CHECK(std::isfinite(scale) && scale > 0, "routed_scale is ", scale,
              "; it must be a finite number above 0");
  TORCH_CHECK(std::isfinite(balance_rate) && balance_rate >= 0, "balance_rate is ", balance_rate,
              "; it must be a finite number, 0 or more");
  TORCH_CHECK(moe_layers(layers) > 0, "moe_every is ", every, " and dense_first ", dense_first,
              "; with ", layers, " layers no block would have experts: lower them, or set experts ",
              "to 0");
}

}  // namespace octavo::models
