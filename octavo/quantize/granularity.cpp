#include "octavo/quantize/granularity.h"

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

}  // namespace octavo
