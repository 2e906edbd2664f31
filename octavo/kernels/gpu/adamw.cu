#include "octavo/kernels/gpu/adamw.h"

#include <type_traits>

#include "octavo/kernels/gpu/device_arithmetic.h"
#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/packed.h"
#include "octavo/kernels/gpu/platform.h"
#include "octavo/kernels/gpu/tensor_table.h"

namespace octavo::gpu {
namespace {

using kernels::AdamwFactors;
using kernels::AdamwOptions;
using kernels::AdamwTensor;

constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements a thread moves at a time: 16 or 32 bytes of each tensor
constexpr int kVectorsPerThread = 8;
constexpr std::int64_t kPerBlock = std::int64_t{kThreads} * kVector * kVectorsPerThread;

struct Params {
  AdamwTensor tensor[kAdamwTensorsPerLaunch];
  std::uint32_t first_block[kAdamwTensorsPerLaunch + 1];  // of each tensor, and the end
  int count;
  AdamwOptions options;
  const double* lr;
  const float* clip;
};
static_assert(sizeof(Params) <= 4096);

// One element of a type in memory.
template <DType T>
struct Element {
  using Bits = std::conditional_t<T == DType::kFP32, float, std::uint16_t>;
  OCTAVO_DEVICE static float load(const void* base, std::int64_t i) {
    const Bits bits = static_cast<const Bits*>(base)[i];
    if constexpr (T == DType::kFP32) return bits;
    return internal::float_of(static_cast<std::uint32_t>(bits) << 16);
  }
  OCTAVO_DEVICE static void store(void* base, std::int64_t i, float x) {
    if constexpr (T == DType::kFP32) {
      static_cast<float*>(base)[i] = x;
    } else {
      static_cast<std::uint16_t*>(base)[i] = kernels::bfloat16_bits(x);
    }
  }
  // As Packed<T> takes them.
  OCTAVO_DEVICE static std::uint32_t bits(float x) {
    if constexpr (T == DType::kFP32) return internal::bits_of(x);
    return kernels::bfloat16_bits(x);
  }
};

template <DType T>
OCTAVO_DEVICE Vec8<T> load_vector(const void* base, std::int64_t i) {
  Vec8<T> v;
  constexpr int kBytes = sizeof(typename Element<T>::Bits);
  v.load_streaming(static_cast<const char*>(base) + i * kBytes);
  return v;
}

template <DType T>
OCTAVO_DEVICE void store_vector(void* base, std::int64_t i, const Vec8<T>& x) {
  constexpr int kBytes = sizeof(typename Element<T>::Bits);
  char* at = static_cast<char*>(base) + i * kBytes;
#pragma unroll
  for (int v = 0; v < Packed<T>::kVectors; ++v) {
    store16_streaming(at + 16 * v,
                      {x.word[4 * v], x.word[4 * v + 1], x.word[4 * v + 2], x.word[4 * v + 3]});
  }
}

// The largest magnitude of a thread's elements, in Packed<T>'s words, and of a block's.
template <DType T>
struct Largest {
  std::uint32_t word = 0;

  OCTAVO_DEVICE void take(std::uint32_t bits) {
    word = Packed<T>::merge(word, Packed<T>::magnitude(bits));
  }
  OCTAVO_DEVICE void take(const Vec8<T>& x) {
#pragma unroll
    for (int i = 0; i < Packed<T>::kWords; ++i) take(x.word[i]);
  }
  // By all threads of the block.
  OCTAVO_DEVICE void merge_into(float* amax) {
    __shared__ std::uint32_t groups[kThreads / 32];
    std::uint32_t all[1] = {word};
    spread_merge<T, 1, 0, 5>(all, threadIdx.x % 32);
    if (threadIdx.x % 32 == 0) groups[threadIdx.x / 32] = all[0];
    __syncthreads();
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) all[0] = Packed<T>::merge(all[0], groups[i]);
    atomic_max_relaxed(reinterpret_cast<std::uint32_t*>(amax), Packed<T>::amax_bits(all[0]));
  }
};

// The formula of kernels/adamw.h up to the quotient: m and v, p decayed, and the numerator.
OCTAVO_DEVICE float begin_update(const AdamwFactors& f, float gradient, float& m, float& v,
                                 float& p) {
  const float g = multiply_rn(gradient, f.clip);
  p = multiply_rn(p, f.decay);
  m = add_rn(f.lerp_from_moment ? m : g, multiply_rn(f.lerp, add_rn(g, -m)));
  v = add_rn(multiply_rn(v, f.beta2), multiply_rn(multiply_rn(f.one_minus_beta2, g), g));
  return multiply_rn(f.negative_step_size, m);
}

// The rest of it.
OCTAVO_DEVICE void finish_update(const AdamwFactors& f, float numerator, float v, float& p) {
  const float denominator = add_rn(multiply_rn(square_root_rn(v), f.root_factor), f.eps);
  p = add_rn(p, divide_rn(numerator, denominator));
}

OCTAVO_DEVICE void update(const AdamwFactors& f, float gradient, float& m, float& v, float& p) {
  const float numerator = begin_update(f, gradient, m, v, p);
  finish_update(f, numerator, v, p);
}

// Whether square_root_normal() and divide_normal() are exact for this v and numerator, given
// usual_factors(): zero, or bits within a range.
OCTAVO_DEVICE bool is_usual(float numerator, float v) {
  const std::uint32_t x = internal::bits_of(numerator) & 0x7FFFFFFFu, w = internal::bits_of(v);
  constexpr std::uint32_t kLeastX = 27u << 23, kMostX = 187u << 23;  // 2^-100, 2^60
  constexpr std::uint32_t kLeastV = 26u << 23, kMostV = 147u << 23;  // 2^-101, 2^20
  return (x - kLeastX <= kMostX - kLeastX || x == 0) && (w - kLeastV <= kMostV - kLeastV || w == 0);
}
// sqrt(v) is at most 2^10 then, and the denominator within 2^-60 and 2^23.
OCTAVO_DEVICE bool usual_factors(const AdamwFactors& f) {
  return f.eps >= 8.7e-19f && f.eps <= 1.0f && f.root_factor <= 4096.0f;
}

// Eight elements. Division and square root branch to rare cases, which zeros (rows of an embedding
// that no token used) take too, and one branch for each keeps the eight from overlapping: where
// all are usual, none.
OCTAVO_DEVICE void update_vector(const AdamwFactors& f, const float (&g)[kVector],
                                 float (&m)[kVector], float (&v)[kVector], float (&p)[kVector]) {
  float numerator[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) numerator[j] = begin_update(f, g[j], m[j], v[j], p[j]);
  bool usual = usual_factors(f);
#pragma unroll
  for (int j = 0; j < kVector; ++j) usual = usual && is_usual(numerator[j], v[j]);
  if (usual) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float root = square_root_normal(v[j]);
      const float quotient =
          divide_normal(numerator[j], add_rn(multiply_rn(root, f.root_factor), f.eps));
      p[j] = add_rn(p[j], numerator[j] == 0.0f ? numerator[j] : quotient);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) finish_update(f, numerator[j], v[j], p[j]);
}

template <DType P, DType G, DType M, bool kMaster>
__global__ void OCTAVO_LAUNCH_BOUNDS(kThreads, 4) adamw_kernel(const Params params) {
  __shared__ AdamwFactors shared_factors;
  const int index = tensor_of_block(params.first_block, params.count);
  const AdamwTensor t = params.tensor[index];
  if (threadIdx.x == 0) {
    shared_factors = kernels::adamw_factors<DeviceArithmetic>(params.options, t.weight_decay,
                                                              *params.lr, *t.step, *params.clip);
  }
  __syncthreads();
  const AdamwFactors f = shared_factors;
  const bool steps = f.clip == f.clip;
  if (!steps && !t.amax) return;
  // What the update reads p from and first writes it to.
  constexpr DType S = kMaster ? DType::kFP32 : P;
  void* const source = kMaster ? t.master : t.parameter;
  const auto misalignment = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16; };
  const bool aligned =
      (misalignment(source) | misalignment(t.parameter) | misalignment(t.gradient) |
       misalignment(t.exp_avg) | misalignment(t.exp_avg_sq)) == 0;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x - params.first_block[index]);
  const std::int64_t begin = block * kPerBlock + threadIdx.x * kVector;
  Largest<P> largest;
#pragma unroll 1
  for (int k = 0; k < kVectorsPerThread; ++k) {
    const std::int64_t i = begin + std::int64_t{k} * kThreads * kVector;
    if (i >= t.size) break;
    if (!steps) {
      for (std::int64_t j = i; j < t.size && j < i + kVector; ++j) {
        largest.take(Element<P>::bits(Element<P>::load(t.parameter, j)));
      }
    } else if (aligned && i + kVector <= t.size) {
      const Vec8<S> old = load_vector<S>(source, i);
      const Vec8<G> g = load_vector<G>(t.gradient, i);
      const Vec8<M> old_m = load_vector<M>(t.exp_avg, i), old_v = load_vector<M>(t.exp_avg_sq, i);
      float p[kVector], m[kVector], v[kVector], gradient[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        p[j] = old[j], m[j] = old_m[j], v[j] = old_v[j], gradient[j] = g[j];
      }
      update_vector(f, gradient, m, v, p);
      store_vector<M>(t.exp_avg, i, Vec8<M>::rounded(m));
      store_vector<M>(t.exp_avg_sq, i, Vec8<M>::rounded(v));
      if constexpr (kMaster) store_vector<S>(source, i, Vec8<S>::rounded(p));
      const Vec8<P> written = Vec8<P>::rounded(p);
      store_vector<P>(t.parameter, i, written);
      largest.take(written);
    } else {
      const std::int64_t end = i + kVector < t.size ? i + kVector : t.size;
      for (std::int64_t j = i; j < end; ++j) {
        float p = Element<S>::load(source, j);
        float m = Element<M>::load(t.exp_avg, j), v = Element<M>::load(t.exp_avg_sq, j);
        update(f, Element<G>::load(t.gradient, j), m, v, p);
        Element<M>::store(t.exp_avg, j, m);
        Element<M>::store(t.exp_avg_sq, j, v);
        if constexpr (kMaster) Element<S>::store(source, j, p);
        Element<P>::store(t.parameter, j, p);
        largest.take(Element<P>::bits(p));
      }
    }
  }
  if (t.amax) largest.merge_into(t.amax);
}

template <DType P, bool kMaster>
void launch(const kernels::AdamwTypes& types, const Params& params, NativeStream stream) {
  constexpr DType k32 = DType::kFP32, k16 = DType::kBF16;
  const unsigned blocks = params.first_block[params.count];
  const bool g16 = types.gradient == kernels::HighPrecision::kBFloat16;
  const bool m16 = types.moments == kernels::HighPrecision::kBFloat16;
  if (g16 && m16) {
    adamw_kernel<P, k16, k16, kMaster><<<blocks, kThreads, 0, stream>>>(params);
  } else if (g16) {
    adamw_kernel<P, k16, k32, kMaster><<<blocks, kThreads, 0, stream>>>(params);
  } else if (m16) {
    adamw_kernel<P, k32, k16, kMaster><<<blocks, kThreads, 0, stream>>>(params);
  } else {
    adamw_kernel<P, k32, k32, kMaster><<<blocks, kThreads, 0, stream>>>(params);
  }
}

void launch(const kernels::AdamwTypes& types, const Params& params, NativeStream stream) {
  if (params.count == 0) return;
  if (types.parameter == kernels::HighPrecision::kFloat32) {
    launch<DType::kFP32, false>(types, params, stream);
  } else if (types.has_master) {
    launch<DType::kBF16, true>(types, params, stream);
  } else {
    launch<DType::kBF16, false>(types, params, stream);
  }
}

}  // namespace

void adamw(const AdamwArgs& args, Stream stream) {
  const auto native = static_cast<NativeStream>(stream);
  Params params{};
  params.options = args.options;
  params.lr = args.lr;
  params.clip = args.clip;
  for (std::int64_t i = 0; i < args.count; ++i) {
    const AdamwTensor& tensor = args.tensors[i];
    if (tensor.size == 0) continue;
    params.tensor[params.count] = tensor;
    params.first_block[params.count + 1] =
        params.first_block[params.count] +
        static_cast<std::uint32_t>(ceil_div(tensor.size, kPerBlock));
    if (++params.count == kAdamwTensorsPerLaunch) {
      launch(args.types, params, native);
      params.count = 0;
    }
  }
  launch(args.types, params, native);
}

}  // namespace octavo::gpu
