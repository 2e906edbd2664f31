#pragma once

#include <cstdint>

#include "octavo/formats/codec.h"

namespace octavo {

/// The FNUZ byte that stands for an OCP byte of the same element once its scale is doubled.
///
/// e4m3fn -> e4m3fnuz and e5m2 -> e5m2fnuz: FNUZ exponents have a bias one larger, so the same byte
/// means half the value, exactly (subnormals too). Two kinds of bytes change: -0 becomes 0x00, and
/// NaN and e5m2's infinities become 0x80, FNUZ's only non-finite value.
/// For stored data that moves to FNUZ hardware; products never convert, they refuse mixed operands
/// or decode.
OCTAVO_HOST_DEVICE constexpr std::uint8_t fnuz_byte_of_ocp(Element element, std::uint8_t byte) {
  const FormatLimits ocp = limits(format_of(element, Flavour::kOCP));
  const std::uint8_t magnitude = byte & 0x7Fu;
  if (magnitude > ocp.max_byte) return limits(format_of(element, Flavour::kFNUZ)).nan_byte;
  return magnitude == 0 ? std::uint8_t{0} : byte;
}

/// The scale that goes with fnuz_byte_of_ocp(): twice the OCP scale, exact below 2^127. NaN stays.
OCTAVO_HOST_DEVICE constexpr float fnuz_scale_of_ocp(float scale) { return 2.0f * scale; }

}  // namespace octavo
