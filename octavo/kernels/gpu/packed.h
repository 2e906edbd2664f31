#pragma once

#include "octavo/kernels/gpu/platform.h"
#include "octavo/kernels/gpu/types.h"

/// Eight neighbouring elements of one row as they lie in registers, for each input type.
namespace octavo::gpu {

/// Magnitudes are compared as integers: clearing the sign bit of a floating-point number leaves
/// bits that order as the magnitudes do, NaN above Inf above all numbers, so an integer maximum
/// is one in which NaN wins, without a test. 16-bit types compare two lanes at a time.
template <DType T>
struct Packed {
  static constexpr bool kHalfWords = T != DType::kFP32;
  static constexpr int kWords = kHalfWords ? 4 : 8;  ///< 32-bit words in eight elements
  static constexpr int kVectors = kWords / 4;        ///< 16-byte vectors in eight elements
  static constexpr std::uint32_t kMagnitude = kHalfWords ? 0x7FFF7FFFu : 0x7FFFFFFFu;

  OCTAVO_DEVICE static std::uint32_t magnitude(std::uint32_t word) { return word & kMagnitude; }
  OCTAVO_DEVICE static std::uint32_t merge(std::uint32_t a, std::uint32_t b) {
    return kHalfWords ? max_u16x2(a, b) : max_u32(a, b);
  }
  /// One element's bits, zero-extended, to fp32: exact, NaN stays NaN.
  OCTAVO_DEVICE static float to_float(std::uint32_t bits) {
    if constexpr (T == DType::kBF16) return internal::float_of(bits << 16);
    if constexpr (T == DType::kFP16) return half_to_float(static_cast<std::uint16_t>(bits));
    return internal::float_of(bits);
  }
  /// The larger magnitude of a merged word's lanes, as fp32 bits.
  OCTAVO_DEVICE static std::uint32_t amax_bits(std::uint32_t word) {
    if constexpr (!kHalfWords) return word;
    const std::uint32_t low = word & 0xFFFFu, high = word >> 16;
    return internal::bits_of(to_float(low > high ? low : high));
  }
};

/// Eight elements of a row.
template <DType T>
struct Vec8 {
  std::uint32_t word[Packed<T>::kWords];

  OCTAVO_DEVICE float operator[](int i) const {
    if constexpr (T == DType::kFP32) return internal::float_of(word[i]);
    const std::uint32_t w = word[i / 2];
    if constexpr (T == DType::kBF16) {
      return internal::float_of(i % 2 == 0 ? w << 16 : w & 0xFFFF0000u);
    }
    return Packed<T>::to_float(i % 2 == 0 ? w & 0xFFFFu : w >> 16);
  }
  OCTAVO_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < Packed<T>::kWords; ++i) word[i] = 0;
  }
  /// Eight values, each rounded once to T.
  OCTAVO_DEVICE static Vec8 rounded(const float (&v)[8]) {
    Vec8 out;
    if constexpr (T == DType::kFP32) {
#pragma unroll
      for (int i = 0; i < 8; ++i) out.word[i] = internal::bits_of(v[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out.word[i] = T == DType::kBF16 ? to_bf16x2(v[2 * i], v[2 * i + 1])
                                        : to_fp16x2(v[2 * i], v[2 * i + 1]);
      }
    }
    return out;
  }
  /// To `address`, 16-byte aligned.
  OCTAVO_DEVICE void store(void* address) const {
    auto* const out = static_cast<Words4*>(address);
#pragma unroll
    for (int i = 0; i < Packed<T>::kVectors; ++i) {
      out[i] = {word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]};
    }
  }
  OCTAVO_DEVICE void set_vector(int i, Words4 v) {
    word[4 * i] = v.x, word[4 * i + 1] = v.y, word[4 * i + 2] = v.z, word[4 * i + 3] = v.w;
  }
  /// Eight elements at `address`, 16-byte aligned.
  OCTAVO_DEVICE void load(const void* address) {
#pragma unroll
    for (int i = 0; i < Packed<T>::kVectors; ++i) {
      set_vector(i, load16(static_cast<const char*>(address) + 16 * i));
    }
  }
  OCTAVO_DEVICE void load_streaming(const void* address) {
#pragma unroll
    for (int i = 0; i < Packed<T>::kVectors; ++i) {
      set_vector(i, load16_streaming(static_cast<const char*>(address) + 16 * i));
    }
  }
  /// Element by element, any stride; the first `count` only, zeros after them.
  OCTAVO_DEVICE void gather(const char* address, std::int64_t stride_bytes, int count) {
    clear();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= count) continue;
      const char* at = address + i * stride_bytes;
      if constexpr (T == DType::kFP32) {
        word[i] = *reinterpret_cast<const std::uint32_t*>(at);
      } else {
        const std::uint32_t bits = *reinterpret_cast<const std::uint16_t*>(at);
        word[i / 2] |= i % 2 == 0 ? bits : bits << 16;
      }
    }
  }
};

/// Eight values, each rounded once to T, to `address`, 16-byte aligned.
template <DType T>
OCTAVO_DEVICE void store8(void* address, const float (&v)[8]) {
  Vec8<T>::rounded(v).store(address);
}

/// Two rows' merged words to one word with a lane for each row (16-bit types), or the first (fp32).
template <DType T>
OCTAVO_DEVICE std::uint32_t merge_pair(const std::uint32_t (&rows)[2]) {
  if constexpr (!Packed<T>::kHalfWords) return rows[0];
  return Packed<T>::merge(byte_permute<0x5410>(rows[0], rows[1]),
                          byte_permute<0x7632>(rows[0], rows[1]));
}

/// Combines N words over the lanes whose numbers differ in `Bits` of lane bits FirstBit upwards,
/// and spreads the results: each step halves the words a lane is responsible for, so N words cost
/// about N shuffles, not N log2 lanes. Afterwards v[0 .. max(1, N >> Bits)) hold the combined
/// words from index first_word_after_spread() on.
template <DType T, int N, int FirstBit, int Bits, int Live = N>
OCTAVO_DEVICE void spread_merge(std::uint32_t (&v)[N], int lane) {
  if constexpr (Bits > 0) {
    constexpr int kMask = 1 << FirstBit;
    constexpr int kHalf = Live > 1 ? Live / 2 : 1;
    if constexpr (Live > 1) {
      const bool upper = lane & kMask;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const std::uint32_t keep = upper ? v[i + kHalf] : v[i];
        const std::uint32_t send = upper ? v[i] : v[i + kHalf];
        v[i] = Packed<T>::merge(keep, shuffle_xor(send, kMask));
      }
    } else {
      v[0] = Packed<T>::merge(v[0], shuffle_xor(v[0], kMask));
    }
    spread_merge<T, N, FirstBit + 1, Bits - 1, kHalf>(v, lane);
  }
}

template <int N, int FirstBit, int Bits>
OCTAVO_DEVICE int first_word_after_spread(int lane) {
  int index = 0, live = N;
#pragma unroll
  for (int step = 0; step < Bits; ++step) {
    if (live > 1) {
      live /= 2;
      if (lane & (1 << (FirstBit + step))) index += live;
    }
  }
  return index;
}

}  // namespace octavo::gpu
