// Precompiled for the operator library and its tests: 6 to 10 s a file without it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <string>
#include <vector>
