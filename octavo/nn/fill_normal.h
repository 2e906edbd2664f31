#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace octavo::nn {

/// Fills a parameter with normal numbers of mean 0 and this deviation that depend on (seed, name,
/// the element's place) alone (kernels/normal.h): the same bits on every device, at any number of
/// threads and whatever else is initialised. `name` becomes its stream by FNV-1a.
///
/// tensor: contiguous; fp32 and bf16 (rounded once from fp32) are filled in place on the CPU, in
/// parallel, and on a GPU; other floating-point types through an fp32 copy. Empty and meta tensors:
/// nothing. Errors: not contiguous.
void fill_normal(const at::Tensor& tensor, double deviation, std::uint64_t seed,
                 std::string_view name);

}  // namespace octavo::nn
