#pragma once

#include <type_traits>

#include "octavo/kernels/gpu/tile.h"

/// From run-time types to kernel instances. Formats the hardware converts have their own instances
/// on the vector paths; the others, and odd shapes, share one with a run-time format.
namespace octavo::gpu {

inline bool is_aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

/// The fastest access to x and both layouts (null: not wanted) that is right for them.
inline Access access_of(const Matrix& x, const void* rows, const void* transposed,
                        const Groups& groups = {}) {
  const bool vectors = is_vector_readable(x) && is_aligned16(rows) && is_aligned16(transposed) &&
                       groups.stride * bytes_of(x.dtype) % 16 == 0;
  if (!vectors) return Access::kElement;
  if (groups.tiles) return Access::kRagged;
  return x.rows % kThreadRows == 0 ? Access::kVector : Access::kElement;
}

/// Calls launch.operator()<T, Encoder, A>() for the run-time format and access.
template <DType T, class Launch>
void dispatch_format(Format format, Access access, const Launch& launch) {
  const auto vectors = [&]<Format F>() {
    if (access == Access::kRagged) {
      launch.template operator()<T, StaticEncoder<F>, Access::kRagged>();
    } else {
      launch.template operator()<T, StaticEncoder<F>, Access::kVector>();
    }
  };
  if (access != Access::kElement && has_cast_instruction(format)) {
    switch (format) {
      case Format::kE4M3FN:
        return vectors.template operator()<Format::kE4M3FN>();
      case Format::kE5M2:
        return vectors.template operator()<Format::kE5M2>();
#if OCTAVO_GPU_HIP
      case Format::kE4M3FNUZ:
        return vectors.template operator()<Format::kE4M3FNUZ>();
      case Format::kE5M2FNUZ:
        return vectors.template operator()<Format::kE5M2FNUZ>();
#endif
      default:
        break;
    }
  }
  launch.template operator()<T, DynamicEncoder, Access::kElement>();
}

/// Calls launch.operator()<F>() for a format the hardware may convert: e5m2 where E5M2 says so.
template <bool E5M2, class Launch>
void dispatch_hardware_format(Format format, const Launch& launch) {
  if (format == Format::kE4M3FN) return launch.template operator()<Format::kE4M3FN>();
  if constexpr (E5M2) {
    if (format == Format::kE5M2) return launch.template operator()<Format::kE5M2>();
  }
#if OCTAVO_GPU_HIP
  if (format == Format::kE4M3FNUZ) return launch.template operator()<Format::kE4M3FNUZ>();
  if constexpr (E5M2) {
    if (format == Format::kE5M2FNUZ) return launch.template operator()<Format::kE5M2FNUZ>();
  }
#endif
}

/// Calls launch.operator()<T, Encoder, A, P>() for a matrix that fits_producer(): e5m2 is for
/// gradients only, and nothing is normalised by groups.
template <class Launch>
void dispatch_produced(const Producer& from, Format format, bool by_offsets, const Launch& launch) {
  const auto with = [&]<class P>() {
    constexpr bool kGradients = std::is_same_v<P, FromSwigluGradients>;
    dispatch_hardware_format<kGradients>(format, [&]<Format F>() {
      if constexpr (!std::is_same_v<P, FromRmsNorm>) {
        if (by_offsets) {
          return launch.template operator()<DType::kBF16, StaticEncoder<F>, Access::kRagged, P>();
        }
      }
      launch.template operator()<DType::kBF16, StaticEncoder<F>, Access::kVector, P>();
    });
  };
  switch (from.what) {
    case Production::kSwiglu:
      return with.template operator()<FromSwiglu>();
    case Production::kSwigluGradients:
      return with.template operator()<FromSwigluGradients>();
    case Production::kRmsNorm:
      return with.template operator()<FromRmsNorm>();
    case Production::kNone:
      break;
  }
}

/// The same for both halves of SwiGLU's gradients.
template <class Launch>
void dispatch_pair(Format format, const Launch& launch) {
  dispatch_hardware_format<true>(format, [&]<Format F>() {
    launch.template
    operator()<DType::kBF16, StaticEncoder<F>, Access::kVector, FromSwigluGradients>();
  });
}

template <class Launch>
void dispatch(const Matrix& x, Format format, Access access, const Launch& launch) {
  switch (x.dtype) {
    case DType::kBF16:
      return dispatch_format<DType::kBF16>(format, access, launch);
    case DType::kFP16:
      return dispatch_format<DType::kFP16>(format, access, launch);
    case DType::kFP32:
      return dispatch_format<DType::kFP32>(format, access, launch);
  }
}

}  // namespace octavo::gpu
