#include "octavo/quantize/granularity.h"

#include <algorithm>

namespace octavo {

std::string to_string(const Granularity& granularity) {
  if (granularity == Granularity::tensorwise()) return "tensorwise";
  if (granularity == Granularity::rowwise()) return "rowwise";
  if (granularity == Granularity::colwise()) return "colwise";
  return (granularity.mx ? "mx" : "") + std::to_string(granularity.block_rows) + "x" +
         std::to_string(granularity.block_columns);
}

ScaleLayout default_scale_layout(const Granularity& granularity) {
  if (granularity == Granularity::block_1x128()) return ScaleLayout::kColumnMajor;
  if (granularity == Granularity::block_128x128()) return ScaleLayout::kPadded4;
  return ScaleLayout::kPlain;
}

std::array<std::int64_t, 2> default_scale_strides(const Granularity& granularity, std::int64_t r,
                                                  std::int64_t c) {
  switch (default_scale_layout(granularity)) {
    case ScaleLayout::kColumnMajor:
      return {1, r};
    case ScaleLayout::kPadded4:
      return {padded4(c), 1};
    default:
      return {std::max<std::int64_t>(c, 1), 1};  // as torch has it where there are no columns
  }
}

}  // namespace octavo
