#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace octavo::nn {

/// y = block(x), whose inside is recomputed in backward instead of kept: between the two passes
/// only x is held. Every parameter the block uses gets its gradient, as without checkpointing.
///
/// The block runs without recording in forward; in backward it runs again under the random
/// generator's state and the autocast state of the first run, so that dropout draws the same mask.
/// Outputs and gradients are the same bits as those of block(x). Autocast's cache of cast weights
/// is off inside: a weight cast without recording must not serve a recorded use.
/// While a CUDA graph is being captured a GPU's generator is left alone: a block that draws from it
/// would draw another mask. Without grad mode this is block(x).
///
/// x: any tensor. `block` should capture parameters and constants only: a captured
/// result of other recorded computation would have its graph walked once per checkpoint.
///
/// Errors: torch::autograd::grad() instead of backward() (the recomputation accumulates into the
/// parameters' .grad), second derivatives.
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> block, const at::Tensor& x);

/// The same for a block of several results, each of which may take part in the loss; all must be
/// defined. Those of an integer type have no gradient.
std::vector<at::Tensor> checkpoint(std::function<std::vector<at::Tensor>(const at::Tensor&)> block,
                                   const at::Tensor& x);

}  // namespace octavo::nn
