// Precompiled for everything that uses torch::nn: 22 s a file without it.
#include <torch/torch.h>

#include <string>
#include <vector>
