// Precompiled for what uses tensors only (2 s a file). torch/library.h stays out: GCC instantiates
// a precompiled header's pending templates again in every file, and few files register operators.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <string>
#include <vector>
