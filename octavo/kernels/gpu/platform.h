#pragma once

/// The only place where CUDA and HIP differ. Everything else in kernels/gpu is one text for both.
///
/// What is wrapped: runtime headers and stream type, lane shuffles (warp of 32, wavefront of 64),
/// atomic max, FP8 conversion instructions, byte permutes, packed 16-bit max, and 16-byte loads and
/// stores with a cache hint.

#include <cstdint>

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#define OCTAVO_GPU_HIP 1
#else
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#define OCTAVO_GPU_HIP 0
#endif

#include "octavo/formats/codec.h"

namespace octavo::gpu {

#if OCTAVO_GPU_HIP
using NativeStream = hipStream_t;
/// A 64-lane wavefront. Tile geometry only relies on lane exchanges within 32 lanes.
inline constexpr int kWarpSize = 64;
#else
using NativeStream = cudaStream_t;
inline constexpr int kWarpSize = 32;
#endif

#define OCTAVO_DEVICE __device__ __forceinline__
/// Threads of a block, and how many blocks' registers must fit a multiprocessor. HIP's second bound
/// counts waves instead; its compiler is left alone there.
#if OCTAVO_GPU_HIP
#define OCTAVO_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads)
#else
#define OCTAVO_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#endif
#define OCTAVO_NOINLINE_DEVICE static __device__ __noinline__

struct alignas(16) Words4 {
  std::uint32_t x, y, z, w;
};
struct alignas(8) Words2 {
  std::uint32_t x, y;
};

// ---------------------------------------------------------------------------------------------
// Lanes

/// The value of lane (lane ^ mask). Every lane of the warp must call it.
OCTAVO_DEVICE std::uint32_t shuffle_xor(std::uint32_t value, int mask) {
#if OCTAVO_GPU_HIP
  return static_cast<std::uint32_t>(__shfl_xor(static_cast<int>(value), mask, 64));
#else
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
#endif
}

// ---------------------------------------------------------------------------------------------
// Blocks that wait for each other

/// Every thread of a cooperative launch waits here for all others; what they wrote is visible
/// after.
#if OCTAVO_GPU_HIP
extern "C" __device__ void __ockl_grid_sync();
OCTAVO_DEVICE void grid_barrier() { __ockl_grid_sync(); }
#else
OCTAVO_DEVICE void grid_barrier() { cooperative_groups::this_grid().sync(); }
#endif

/// Launches a kernel whose blocks must all be resident at once. A grid that is too large is a
/// launch error of the stream.
template <class Params>
void launch_cooperative(void (*kernel)(Params), unsigned blocks, unsigned threads,
                        NativeStream stream, Params& params) {
  void* arguments[] = {&params};
#if OCTAVO_GPU_HIP
  (void)hipLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(blocks),
                                   dim3(threads), arguments, 0, stream);
#else
  (void)cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(blocks),
                                    dim3(threads), arguments, 0, stream);
#endif
}

// ---------------------------------------------------------------------------------------------
// Integer pieces

/// Bytes of (a, b) chosen by the nibbles of Selector, as PTX prmt: nibbles 0-3 are a's bytes, 4-7
/// b's, the lowest nibble gives the lowest byte.
template <std::uint32_t Selector>
OCTAVO_DEVICE std::uint32_t byte_permute(std::uint32_t a, std::uint32_t b) {
#if OCTAVO_GPU_HIP
  // v_perm_b32 numbers its second operand's bytes 0-3 and its first's 4-7: (b, a) gives prmt's.
  constexpr std::uint32_t selector = (Selector & 0xFu) | (Selector & 0xF0u) << 4 |
                                     (Selector & 0xF00u) << 8 | (Selector & 0xF000u) << 12;
  return __builtin_amdgcn_perm(b, a, selector);
#else
  return __byte_perm(a, b, Selector);
#endif
}

/// Both unsigned 16-bit halves' maxima.
OCTAVO_DEVICE std::uint32_t max_u16x2(std::uint32_t a, std::uint32_t b) {
#if OCTAVO_GPU_HIP
  typedef unsigned short u16x2 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(std::uint32_t, __builtin_elementwise_max(__builtin_bit_cast(u16x2, a),
                                                                     __builtin_bit_cast(u16x2, b)));
#else
  return __vmaxu2(a, b);
#endif
}

OCTAVO_DEVICE std::uint32_t max_u32(std::uint32_t a, std::uint32_t b) { return a > b ? a : b; }

/// *address = max(*address, value), relaxed, visible to the whole device. On the bits of
/// magnitudes it is a maximum in which NaN wins: NaN patterns are above Inf's.
OCTAVO_DEVICE void atomic_max_relaxed(std::uint32_t* address, std::uint32_t value) {
#if OCTAVO_GPU_HIP
  __hip_atomic_fetch_max(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  atomicMax(address, value);
#endif
}

// ---------------------------------------------------------------------------------------------
// Memory

OCTAVO_DEVICE Words4 load16(const void* address) { return *static_cast<const Words4*>(address); }

/// A 16-byte load that need not stay in the caches.
OCTAVO_DEVICE Words4 load16_streaming(const void* address) {
#if OCTAVO_GPU_HIP
  typedef std::uint32_t u32x4 __attribute__((ext_vector_type(4)));
  return __builtin_bit_cast(Words4, __builtin_nontemporal_load(static_cast<const u32x4*>(address)));
#else
  const uint4 v = __ldcs(static_cast<const uint4*>(address));
  return {v.x, v.y, v.z, v.w};
#endif
}

// Stores that need not stay in the caches. On an H200 L1::no_allocate writes both layouts 1% faster
// than .cs, and plain stores 5% more slowly.
OCTAVO_DEVICE void store16_streaming(void* address, Words4 v) {
#if OCTAVO_GPU_HIP
  typedef std::uint32_t u32x4 __attribute__((ext_vector_type(4)));
  __builtin_nontemporal_store(__builtin_bit_cast(u32x4, v), static_cast<u32x4*>(address));
#else
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
#endif
}

OCTAVO_DEVICE void store8_streaming(void* address, Words2 v) {
#if OCTAVO_GPU_HIP
  typedef std::uint32_t u32x2 __attribute__((ext_vector_type(2)));
  __builtin_nontemporal_store(__builtin_bit_cast(u32x2, v), static_cast<u32x2*>(address));
#else
  asm volatile("st.global.L1::no_allocate.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(v.x), "r"(v.y)
               : "memory");
#endif
}

/// A store of a piece of a sector: it stays in L2 until the rest of the sector is there. Where it
/// does not, DRAM reads, merges and writes each piece (MX codes in plain rows: 25% more time).
OCTAVO_DEVICE void store4_kept(void* address, std::uint32_t word) {
#if OCTAVO_GPU_HIP
  *static_cast<std::uint32_t*>(address) = word;
#else
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("st.global.L1::no_allocate.L2::cache_hint.u32 [%0], %1, %2;" ::"l"(address),
               "r"(word), "l"(policy)
               : "memory");
#endif
}

// ---------------------------------------------------------------------------------------------
// Floating point

/// fp16 bits to fp32, exact; NaN stays NaN.
OCTAVO_DEVICE float half_to_float(std::uint16_t bits) {
#if OCTAVO_GPU_HIP
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#endif
}

/// Two fp32 values rounded to nearest even, as the two halves of a word, `low` in the lower one.
OCTAVO_DEVICE std::uint32_t to_bf16x2(float low, float high) {
#if OCTAVO_GPU_HIP
  typedef __bf16 bf16x2 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(std::uint32_t,
                            bf16x2{static_cast<__bf16>(low), static_cast<__bf16>(high)});
#else
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#endif
}
OCTAVO_DEVICE std::uint32_t to_fp16x2(float low, float high) {
#if OCTAVO_GPU_HIP
  typedef _Float16 fp16x2 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(std::uint32_t,
                            fp16x2{static_cast<_Float16>(low), static_cast<_Float16>(high)});
#else
  std::uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#endif
}

/// fp32 and fp64 operations rounded to nearest one by one, whatever the compiler's flags: it may
/// neither fuse a product with a sum nor approximate.
#if OCTAVO_GPU_HIP
// Divisions and square roots are correctly rounded unless
// -fno-hip-fp32-correctly-rounded-divide-sqrt says otherwise.
#define OCTAVO_ROUNDED(type, name, parameters, cuda, expression) \
  OCTAVO_HOST_DEVICE inline type name parameters {               \
    _Pragma("clang fp contract(off)") return expression;         \
  }
#elif defined(__CUDA_ARCH__)
#define OCTAVO_ROUNDED(type, name, parameters, cuda, expression) \
  OCTAVO_DEVICE type name parameters { return cuda; }
#else
#define OCTAVO_ROUNDED(type, name, parameters, cuda, expression) \
  OCTAVO_HOST_DEVICE inline type name parameters { return expression; }
#endif
OCTAVO_ROUNDED(float, multiply_rn, (float a, float b), __fmul_rn(a, b), a* b)
OCTAVO_ROUNDED(float, add_rn, (float a, float b), __fadd_rn(a, b), a + b)
OCTAVO_ROUNDED(float, divide_rn, (float a, float b), __fdiv_rn(a, b), a / b)
OCTAVO_ROUNDED(float, fma_rn, (float a, float b, float c), __fmaf_rn(a, b, c),
               __builtin_fmaf(a, b, c))
OCTAVO_ROUNDED(float, square_root_rn, (float a), __fsqrt_rn(a), __builtin_sqrtf(a))
OCTAVO_ROUNDED(double, multiply_rn, (double a, double b), __dmul_rn(a, b), a* b)
OCTAVO_ROUNDED(double, subtract_rn, (double a, double b), __dsub_rn(a, b), a - b)
OCTAVO_ROUNDED(double, divide_rn, (double a, double b), __ddiv_rn(a, b), a / b)
OCTAVO_ROUNDED(double, square_root_rn, (double a), __dsqrt_rn(a), __builtin_sqrt(a))
#undef OCTAVO_ROUNDED

/// 2^x and 1 / x by one instruction, to about two units in the last place. 2^x of Inf and NaN, and
/// 1 / Inf, are exact. AMD's flush subnormal results to zero.
OCTAVO_DEVICE float exp2_fast(float x) {
#if OCTAVO_GPU_HIP
  return __builtin_amdgcn_exp2f(x);
#else
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
OCTAVO_DEVICE float reciprocal_fast(float x) {
#if OCTAVO_GPU_HIP
  return __builtin_amdgcn_rcpf(x);
#else
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// True where one instruction converts fp32 to `format`.
OCTAVO_DEVICE constexpr bool has_native_cast([[maybe_unused]] Format format) {
#if OCTAVO_GPU_HIP
#if defined(__gfx942__)
  return flavour_of(format) == Flavour::kFNUZ;
#elif defined(__gfx950__) || defined(__gfx1200__) || defined(__gfx1201__)
  return flavour_of(format) == Flavour::kOCP;
#else
  return false;
#endif
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return flavour_of(format) == Flavour::kOCP;
#else
  return false;
#endif
}

#if OCTAVO_GPU_HIP
/// What v_cvt_pk_fp8_f32 leaves to the program: it does not saturate (unless a mode bit says so)
/// and writes NaN with a sign in the OCP formats.
template <Format F>
OCTAVO_DEVICE float prepare_cast(float x) {
  constexpr float max = limits(F).max;
  if (x != x) return __builtin_nanf("");
  // fminf and fmaxf drop NaN: the line above has returned it already.
  return __builtin_fminf(__builtin_fmaxf(x, -max), max);
}
#endif

/// Four values to four bytes of `F`, x0 lowest: octavo::encode with saturation, bit for bit.
template <Format F>
OCTAVO_DEVICE std::uint32_t encode4(float x0, float x1, float x2, float x3) {
  if constexpr (has_native_cast(F)) {
#if OCTAVO_GPU_HIP
    x0 = prepare_cast<F>(x0), x1 = prepare_cast<F>(x1);
    x2 = prepare_cast<F>(x2), x3 = prepare_cast<F>(x3);
#if defined(__gfx942__) || defined(__gfx950__) || defined(__gfx1200__) || defined(__gfx1201__)
    int word = 0;
    if constexpr (element_of(F) == Element::kE4M3) {
      word = __builtin_amdgcn_cvt_pk_fp8_f32(x0, x1, word, false);
      word = __builtin_amdgcn_cvt_pk_fp8_f32(x2, x3, word, true);
    } else {
      word = __builtin_amdgcn_cvt_pk_bf8_f32(x0, x1, word, false);
      word = __builtin_amdgcn_cvt_pk_bf8_f32(x2, x3, word, true);
    }
    return static_cast<std::uint32_t>(word);
#endif
#else
    std::uint16_t low, high;
    if constexpr (element_of(F) == Element::kE4M3) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x1), "f"(x0));
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x3), "f"(x2));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x1), "f"(x0));
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x3), "f"(x2));
    }
    return low | static_cast<std::uint32_t>(high) << 16;
#endif
  }
  return static_cast<std::uint32_t>(encode(F, x0)) |
         static_cast<std::uint32_t>(encode(F, x1)) << 8 |
         static_cast<std::uint32_t>(encode(F, x2)) << 16 |
         static_cast<std::uint32_t>(encode(F, x3)) << 24;
}

}  // namespace octavo::gpu
