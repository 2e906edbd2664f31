#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/platform.h"

/// Hopper's instructions as functions: barriers in shared memory, tensor copies into the shared
/// memory of a cluster, products of warpgroups. sm_90a only; names and semantics as in the PTX
/// manual (sections mbarrier, cp.async.bulk.tensor, wgmma).
/// Device code of other architectures is compiled without them: OCTAVO_HOPPER_CODE guards their
/// users.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OCTAVO_HOPPER_CODE 1
#endif

namespace octavo::gpu::hopper {

OCTAVO_DEVICE std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---------------------------------------------------------------------------------------------
// Threads

OCTAVO_DEVICE std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// All threads of the cluster; what they wrote to shared memory before is visible after.
OCTAVO_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

/// `threads` threads that name the same barrier (1..15) wait for each other.
OCTAVO_DEVICE void named_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Registers of a warpgroup from here on; the sum over the block must not grow.
template <int Registers>
OCTAVO_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
OCTAVO_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---------------------------------------------------------------------------------------------
// mbarrier (addresses in shared memory)

OCTAVO_DEVICE void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// Makes initialised barriers visible to the cluster and to copies.
OCTAVO_DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives, and lets the phase end only after `bytes` more have been copied.
OCTAVO_DEVICE void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Arrives at the barrier with this address in block `rank` of the cluster.
OCTAVO_DEVICE void barrier_arrive(std::uint32_t barrier, std::uint32_t rank) {
  asm volatile(
      "{.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

/// Writes 32 bytes to this place in block `rank` and ends a phase of its barrier, which expects one
/// arrival: whoever waits there sees them.
OCTAVO_DEVICE void send(std::uint32_t to, std::uint32_t barrier, std::uint32_t rank,
                        const int4& low, const int4& high) {
  asm volatile(
      "{.reg .b32 there, signal;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 signal, %1, %2;\n"
      "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [signal], 32;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [there], {%3, %4, %5, %6}, "
      "[signal];\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [there + 16], {%7, %8, %9, "
      "%10}, "
      "[signal];}\n" ::"r"(to),
      "r"(barrier), "r"(rank), "r"(low.x), "r"(low.y), "r"(low.z), "r"(low.w), "r"(high.x),
      "r"(high.y), "r"(high.z), "r"(high.w)
      : "memory");
}

/// Waits until the phase of this parity has ended.
OCTAVO_DEVICE void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
#ifdef OCTAVO_WATCHDOG
  const long long begin = clock64();
#endif
  do {
    asm volatile(
        "{.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#ifdef OCTAVO_WATCHDOG
    if (!done && clock64() - begin > 2000000000ll) __trap();
#endif
  } while (!done);
}

// ---------------------------------------------------------------------------------------------
// Tensor copies

OCTAVO_DEVICE void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Copies the box at (column, row) to `to`; its bytes count at `barrier`. Elements outside the
/// tensor arrive as zeros and count too.
OCTAVO_DEVICE void copy_box(const void* map, std::uint32_t to, std::uint32_t barrier,
                            std::int32_t column, std::int32_t row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

/// The same to this place in every block of `blocks` (bit i: rank i), whose own barrier counts.
OCTAVO_DEVICE void copy_box_to_cluster(const void* map, std::uint32_t to, std::uint32_t barrier,
                                       std::int32_t column, std::int32_t row,
                                       std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(blocks), "r"(column), "r"(row)
      : "memory");
}

/// Orders this thread's ordinary writes to shared memory before what copies and products do there.
OCTAVO_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---------------------------------------------------------------------------------------------
// Products of a warpgroup (128 threads, all of which call these)

/// Descriptor of rows of 128 bytes, swizzled by the copy (128-byte pattern of eight rows, 1024-byte
/// aligned). Adding 2 moves on by 32 bytes along the rows.
OCTAVO_DEVICE std::uint64_t rows_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle128 = 1ull << 62, kEightRows = 1024ull >> 4 << 32;
  return kSwizzle128 | kEightRows | 1ull << 16 | ((address & 0x3FFFF) >> 4);
}

OCTAVO_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
OCTAVO_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Until at most `Pending` committed groups are unfinished.
template <int Pending>
OCTAVO_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Keeps the compiler from moving uses of accumulators across this point.
template <int Count>
OCTAVO_DEVICE void hold(float* d) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define OCTAVO_D8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// clang-format off
/// d (64 x 256, the warpgroup's accumulators) = or += a (64 x 32) . b (256 x 32)^T.
OCTAVO_DEVICE void wgmma_m64n256k32(float* d, std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "
      "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, "
      "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "
      "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "
      "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1;}\n"
      : OCTAVO_D8(0), OCTAVO_D8(8), OCTAVO_D8(16), OCTAVO_D8(24),
        OCTAVO_D8(32), OCTAVO_D8(40), OCTAVO_D8(48), OCTAVO_D8(56),
        OCTAVO_D8(64), OCTAVO_D8(72), OCTAVO_D8(80), OCTAVO_D8(88),
        OCTAVO_D8(96), OCTAVO_D8(104), OCTAVO_D8(112), OCTAVO_D8(120)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d (64 x 128, the warpgroup's accumulators) = or += a (64 x 32) . b (128 x 32)^T.
OCTAVO_DEVICE void wgmma_m64n128k32(float* d, std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1;}\n"
      : OCTAVO_D8(0), OCTAVO_D8(8), OCTAVO_D8(16), OCTAVO_D8(24),
        OCTAVO_D8(32), OCTAVO_D8(40), OCTAVO_D8(48), OCTAVO_D8(56)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
// clang-format on
#undef OCTAVO_D8

// ---------------------------------------------------------------------------------------------
// Output

/// Four 8 x 8 matrices of 16-bit elements to shared memory: lanes 8i..8i+7 name the rows of matrix
/// i, each lane holds two neighbours of row lane / 4.
OCTAVO_DEVICE void store_matrices(std::uint32_t row_address, std::uint32_t m0, std::uint32_t m1,
                                  std::uint32_t m2, std::uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

OCTAVO_DEVICE Words4 load16_shared(std::uint32_t address) {
  Words4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

OCTAVO_DEVICE void zero16_shared(std::uint32_t address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

/// Two fp32 rounded to nearest bf16, `low` in the lower half.
OCTAVO_DEVICE std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Sums of eight bf16 with eight others, in fp32, rounded to nearest.
OCTAVO_DEVICE Words4 add_bf16(const Words4& x, const Words4& y) {
  const auto pair = [](std::uint32_t a, std::uint32_t b) {
    return pack_bf16(__uint_as_float(a << 16) + __uint_as_float(b << 16),
                     __uint_as_float(a & 0xFFFF0000u) + __uint_as_float(b & 0xFFFF0000u));
  };
  return {pair(x.x, y.x), pair(x.y, y.y), pair(x.z, y.z), pair(x.w, y.w)};
}

/// A load that stays where it is written: early, so that its latency passes during a product.
OCTAVO_DEVICE float load_early(const float* address) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}

}  // namespace octavo::gpu::hopper
