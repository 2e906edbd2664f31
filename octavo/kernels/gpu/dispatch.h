#pragma once

#include "octavo/kernels/gpu/tile.h"

/// From run-time types to kernel instances. Formats the hardware converts get their own instances
/// on the vector path; the others, and odd shapes, share one with a run-time format.
namespace octavo::gpu {

/// True when a thread's 16 x 8 is always whole or absent and every vector it moves is aligned.
inline bool takes_vectors(const Matrix& x, const void* rows, const void* transposed) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return is_vector_readable(x) && x.rows % kThreadRows == 0 && aligned(rows) && aligned(transposed);
}

template <DType T, class Launch>
void dispatch_format(Format format, bool vectors, const Launch& launch) {
  if (!vectors) return launch.template run<T, DynamicEncoder, Access::kElement>();
  switch (format) {
    case Format::kE4M3FN:
      return launch.template run<T, StaticEncoder<Format::kE4M3FN>, Access::kVector>();
    case Format::kE5M2:
      return launch.template run<T, StaticEncoder<Format::kE5M2>, Access::kVector>();
#if OCTAVO_GPU_HIP
    case Format::kE4M3FNUZ:
      return launch.template run<T, StaticEncoder<Format::kE4M3FNUZ>, Access::kVector>();
    case Format::kE5M2FNUZ:
      return launch.template run<T, StaticEncoder<Format::kE5M2FNUZ>, Access::kVector>();
#endif
    default:
      return launch.template run<T, DynamicEncoder, Access::kElement>();
  }
}

template <class Launch>
void dispatch(const Matrix& x, Format format, bool vectors, const Launch& launch) {
  switch (x.dtype) {
    case DType::kBF16:
      return dispatch_format<DType::kBF16>(format, vectors, launch);
    case DType::kFP16:
      return dispatch_format<DType::kFP16>(format, vectors, launch);
    case DType::kFP32:
      return dispatch_format<DType::kFP32>(format, vectors, launch);
  }
}

}  // namespace octavo::gpu
