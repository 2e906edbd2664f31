// Precompiled for what uses torch::nn. Narrow on purpose: GCC instantiates a precompiled header's
// pending templates again in every file, which costs torch/torch.h 12 s a file and this 7 s.
#include <ATen/ATen.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>
