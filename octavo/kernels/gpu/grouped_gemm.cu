#include "octavo/kernels/gpu/grouped_gemm.h"

#include "octavo/kernels/gpu/grouped_gemm_kernel.h"
#include "octavo/kernels/gpu/launch.h"

namespace octavo::gpu {
namespace {

using namespace grouped;

template <Product P, Sum S>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel([[maybe_unused]] const __grid_constant__ Params p) {
#ifdef OCTAVO_HOPPER_CODE
  grouped_gemm<P, S>(p);
#endif
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking libcuda.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess) {
      (void)cudaGetLastError();
      found = nullptr;
    }
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

/// Boxes of `box_rows` x 128 bytes of a row-major matrix.
bool describe(CUtensorMap& map, const void* data, std::int64_t rows, std::int64_t columns,
              unsigned box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns)};
  const cuuint32_t box[] = {kDepth, box_rows}, steps[] = {1, 1};
  return encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), sizes,
                        strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool is_hopper() {
  int device = 0, major = 0, minor = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major == 9 && minor == 0;
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

const char* problem(const void* a, const void* b, const void* out, std::int64_t rows,
                    std::int64_t columns, std::int64_t contraction, int groups) {
  constexpr std::int64_t kMax = 0x7FFFFFFF;
  if (!is_hopper()) return "the device is not of compute capability 9.0";
  if (!encode_tiled())
    return "the driver has no cuTensorMapEncodeTiled: CUDA 12 or newer is needed";
  if (groups > kMaxGroups) return "there are more than 512 groups";
  if (contraction % 16 != 0) return "the contraction's size is no multiple of 16";
  if (columns % 8 != 0) return "the result's columns are no multiple of 8";
  if (!is_aligned(a) || !is_aligned(b) || !is_aligned(out)) {
    return "a, b or out is not aligned to 16 bytes";
  }
  if (rows > kMax - 256 || contraction > kMax - 256 || columns > kMax - 256 ||
      groups * columns > kMax - 256) {
    return "a size passes 2^31";
  }
  return nullptr;
}

template <Product P, Sum S>
const char* launch(const Params& p, Stream stream) {
  const auto kernel = grouped_gemm_kernel<P, S>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)) !=
      cudaSuccess) {
    (void)cudaGetLastError();
    return "the device has too little shared memory, or the kernels were not compiled for sm_90a";
  }
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(multiprocessors() / 2 * 2));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = static_cast<NativeStream>(stream);
  config.attrs = &cluster, config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, p);
  return nullptr;
}

template <Product P>
const char* run(Params& p, const void* a, std::int64_t a_rows, const void* b, std::int64_t b_rows,
                Scaling scaling, Accumulation accumulation, Stream stream) {
  if (!describe(p.a, a, a_rows, p.extents.contraction, 64) ||
      !describe(p.b, b, b_rows, p.extents.contraction, 128)) {
    return "the driver refused the operands' tensor maps";
  }
  if (scaling == Scaling::kBlocks) return launch<P, Sum::kBlocks>(p, stream);
  return accumulation == Accumulation::kFast ? launch<P, Sum::kFast>(p, stream)
                                             : launch<P, Sum::kFull>(p, stream);
}

}  // namespace

const char* grouped_gemm_rows(const GroupedGemmRowsArgs& x, Stream stream) {
  if (const char* wrong = problem(x.a, x.b, x.out, x.M, x.N, x.K, x.E)) return wrong;
  if (x.M == 0 || x.N == 0) return nullptr;
  if (x.K == 0 || x.E == 0) {
    zero_async(x.out, static_cast<std::size_t>(2 * x.M * x.N), stream);
    return nullptr;
  }
  Params p{};
  p.extents = {x.E, static_cast<int>(x.M), static_cast<int>(x.N), static_cast<int>(x.K)};
  p.offs = x.offs, p.a_scale = x.a_scale, p.b_scale = x.b_scale, p.counter = x.counter;
  p.a_block = x.a_block, p.b_group = x.b_group, p.b_row = x.b_row;
  p.out = static_cast<std::uint16_t*>(x.out);
  return run<Product::kRows>(p, x.a, x.M, x.b, x.E * x.N, x.scaling, x.accumulation, stream);
}

const char* grouped_gemm_k(const GroupedGemmKArgs& x, Stream stream) {
  if (const char* wrong = problem(x.a, x.b, x.out, x.N, x.K, x.Mt, x.E)) return wrong;
  if (x.E == 0 || x.N == 0 || x.K == 0) return nullptr;
  if (x.Mt == 0) {
    if (!x.accumulate) {
      zero_async(x.out, static_cast<std::size_t>(2 * x.E * x.N * x.K), stream);
    }
    return nullptr;
  }
  Params p{};
  p.extents = {x.E, static_cast<int>(x.N), static_cast<int>(x.K), static_cast<int>(x.Mt)};
  p.offs = x.offs, p.a_scale = x.a_scale, p.b_scale = x.b_scale, p.counter = x.counter;
  p.a_block = x.a_block, p.b_block = x.b_block;
  p.out = static_cast<std::uint16_t*>(x.out), p.accumulate = x.accumulate;
  return run<Product::kContraction>(p, x.a, x.N, x.b, x.K, x.scaling, x.accumulation, stream);
}

}  // namespace octavo::gpu
