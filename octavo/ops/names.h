#pragma once

#include <string>
#include <string_view>

#include "octavo/gemm/scaled_mm.h"
#include "octavo/ops/float8_linear.h"
#include "octavo/quantize/quantize.h"

/// The words operators take as strings, as values. An unknown word is an error that names
/// `argument`, the known words and the nearest.
namespace octavo::ops {

Format parse_format(const char* argument, std::string_view word);
Granularity parse_granularity(const char* argument, std::string_view word);
ScaleRounding parse_scale_rounding(const char* argument, std::string_view word);
MxRounding parse_mx_rounding(const char* argument, std::string_view word);
Backend parse_backend(const char* argument, std::string_view word);
KeepWeightTransposed parse_keep(const char* argument, std::string_view word);
bool parse_transposed(const char* argument, std::string_view word);  ///< "rows" or "transposed"

/// The arguments format, granularity, scale_rounding and mx_rounding of quantising operators.
LayoutSpec parse_layout_spec(std::string_view format, std::string_view granularity,
                             std::string_view scale_rounding, std::string_view mx_rounding);

/// "auto", "on" or "off".
std::string name(KeepWeightTransposed keep);

}  // namespace octavo::ops
