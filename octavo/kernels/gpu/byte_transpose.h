#pragma once

#include "octavo/kernels/gpu/platform.h"

namespace octavo::gpu {

/// 16 rows x 4 columns of bytes, transposed in registers: words[r] holds the columns of row r, and
/// column[c][b] the rows 4b..4b+3 of column c, so that a column's words are 16 bytes to store.
OCTAVO_DEVICE void transpose_words(const std::uint32_t (&words)[16],
                                   std::uint32_t (&column)[4][4]) {
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const std::uint32_t a0 = words[4 * b], a1 = words[4 * b + 1];
    const std::uint32_t a2 = words[4 * b + 2], a3 = words[4 * b + 3];
    const std::uint32_t low01 = byte_permute<0x5140>(a0, a1);
    const std::uint32_t low23 = byte_permute<0x5140>(a2, a3);
    const std::uint32_t high01 = byte_permute<0x7362>(a0, a1);
    const std::uint32_t high23 = byte_permute<0x7362>(a2, a3);
    column[0][b] = byte_permute<0x5410>(low01, low23);
    column[1][b] = byte_permute<0x7632>(low01, low23);
    column[2][b] = byte_permute<0x5410>(high01, high23);
    column[3][b] = byte_permute<0x7632>(high01, high23);
  }
}

}  // namespace octavo::gpu
