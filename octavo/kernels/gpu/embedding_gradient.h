#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// What an embedding's backward adds to its weight's gradient, touching the rows that were looked
/// up and no others:
///
///   gradient[v,:] += sum over m with token[m] == v, in rising m, of dy[m,:]
///
/// summed in fp32 with the row's old value first, rounded once to the gradient's type. One block
/// owns a row: deterministic. A token that stands for thousands of others is one block's work.
struct EmbeddingGradientArgs {
  const std::int64_t* sorted = nullptr;  ///< (M) the tokens in rising order
  const std::int64_t* order = nullptr;   ///< (M) the m of each, by a stable sort
  std::int64_t tokens = 0;               ///< M; 0 launches nothing
  std::int64_t features = 0;             ///< D
  DType dtype = DType::kBF16;            ///< of dy and the gradient
  const void* dy = nullptr;              ///< (M, D), contiguous
  void* gradient = nullptr;              ///< (V, D), contiguous
};

void add_embedding_gradient(const EmbeddingGradientArgs& args, Stream stream);

}  // namespace octavo::gpu
