#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace octavo::nn {

class LinearImpl;

/// The largest magnitude of a weight, known without reading it because whoever wrote the weight
/// last (AdamW) found it on the way. Whole-tensor scales follow from it.
///
/// It counts for the weight as it was at found(): in-place operations, set_data(), a move, another
/// dtype and another tensor under the same name are all noticed, and of() is undefined then. Not
/// noticed is who writes the values past the version counter (`.data`, raw pointers): AdamW
/// raises it, others call forget().
class WeightAmax {
 public:
  /// Where the amax of w goes: an fp32 number on w's device, in the same memory as long as w stays
  /// there, so that a captured graph can read and write it. To be followed by found().
  at::Tensor memory(const at::Tensor& w);
  /// What memory() holds, or will when work queued until now has run, is the amax of w as it is.
  void found(const at::Tensor& w);
  void forget() { seen_.reset(); }

  /// The amax of w: memory(), or undefined where it is not known.
  at::Tensor of(const at::Tensor& w) const;
  /// Makes of(w) known: reads w where it is not.
  void refresh(const at::Tensor& w);

 private:
  // A weight as it was. The weak reference keeps the storage's address from being used again.
  struct Seen {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    std::vector<std::int64_t> sizes, strides;
    at::ScalarType dtype;
    std::uint32_t version;
  };
  at::Tensor memory_;
  std::optional<Seen> seen_;
};

/// Weights by their tensor, and where their amaxes go.
using WeightAmaxes = std::unordered_map<const c10::TensorImpl*, WeightAmax*>;

/// Gives every linear below `module` whose recipe scales a layout of w as a whole a weight_amax,
/// where it has none yet, and returns those linears. Not those whose weight has a second name
/// there.
std::vector<LinearImpl*> track_weight_amaxes(torch::nn::Module& module);

}  // namespace octavo::nn
