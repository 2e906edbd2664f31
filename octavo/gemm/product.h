#pragma once

#include <string_view>

#include "octavo/device/native_products.h"
#include "octavo/quantize/scaled_tensor.h"

/// What every product, grouped or not, asks of its operands.
namespace octavo {

/// Throws unless both have one flavour and one of them is e4m3.
void check_formats(const ScaledTensor& a, const ScaledTensor& b);

/// Throws unless the scales lie as default_scale_layout() has them.
void check_scale_layout(const ScaledTensor& matrix, std::string_view argument);

/// Throws unless it is fp32, bf16 or fp16.
void check_out_dtype(at::ScalarType out_dtype);

/// How the product of a and b is scaled: a tensor scale beside row scales is a rowwise product.
ScalingFamily family_of(const ScaledTensor& a, const ScaledTensor& b);

/// native_product() or native_grouped_product().
using NativeTable = NativeProduct (*)(const Architecture&, ScalingFamily, Flavour);

/// The backend that multiplies a and b on their device: the one `table` gives where `asked` is
/// kAuto, otherwise the one asked for; never kAuto. Errors: on the CPU any but auto and reference;
/// on GPUs any but the table's, emulated, and aten where it reads the operands' flavour.
Backend choose_backend(const ScaledTensor& a, const ScaledTensor& b, Backend asked,
                       NativeTable table);

}  // namespace octavo
