#include "octavo/quantize/scaled_tensor.h"

#include <c10/util/Exception.h>

namespace octavo {

at::ScalarType scalar_type(Format format) {
  switch (format) {
    case Format::kE4M3FN:
      return at::kFloat8_e4m3fn;
    case Format::kE5M2:
      return at::kFloat8_e5m2;
    case Format::kE4M3FNUZ:
      return at::kFloat8_e4m3fnuz;
    case Format::kE5M2FNUZ:
      return at::kFloat8_e5m2fnuz;
  }
  TORCH_CHECK(false, "format: no such value ", static_cast<int>(format));
}

Format format_of(at::ScalarType dtype) {
  for (Format format : kAllFormats) {
    if (scalar_type(format) == dtype) return format;
  }
  TORCH_CHECK(false,
              "data: expected an FP8 dtype (float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, "
              "float8_e5m2fnuz), got ",
              dtype, "; quantise it first with quantize_operand()");
}

Format ScaledTensor::format() const { return format_of(data.scalar_type()); }

ScaledTensor expert(const ScaledTensor& weights, std::int64_t e) {
  ScaledTensor out = weights;
  out.data = weights.data.select(0, e);
  out.scale = weights.scale.select(0, e);
  out.logical_sizes.erase(out.logical_sizes.begin());
  return out;
}

}  // namespace octavo
