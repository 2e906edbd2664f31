// octavo::amax: the largest magnitudes that octavo::quantize takes, for who finds them over several
// matrices (the shards of a weight).
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/names.h"
#include "octavo/quantize/amaxes.h"

namespace octavo::ops {
namespace {

using Words = c10::List<std::string>;

std::vector<Granularity> parse_granularities(const Words& words) {
  std::vector<Granularity> granularities;
  for (const std::string& word : words) {
    granularities.push_back(parse_granularity("granularities", word));
  }
  return granularities;
}

at::Tensor call_amax(const at::Tensor& x, Words granularities) {
  static const auto op = find_operator<decltype(call_amax)>("octavo::amax");
  return op.call(x, granularities);
}

at::Tensor amax_kernel(const at::Tensor& x, Words granularities) {
  return find_amaxes(x, parse_granularities(granularities));
}

at::Tensor amax_meta(const at::Tensor& x, Words granularities) {
  TORCH_CHECK(x.dim() == 2, "x: expected a matrix (M, K), got ", x.dim(), " dimensions");
  c10::SymInt count = 0;
  for (const Granularity& granularity : parse_granularities(granularities)) {
    if (granularity == Granularity::tensorwise()) {
      count += 1;
    } else {
      count += x.sym_size(granularity == Granularity::rowwise() ? 0 : 1);
    }
  }
  return at::empty_symint({count}, x.options().dtype(at::kFloat));
}

at::Tensor amax_autograd(const at::Tensor& x, Words granularities) {
  refuse_tangents("amax", {x});
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_amax(x, granularities);
  }
  return requires_derivative({x}) ? without_derivative("amax", result) : result;
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CPU, m) { m.impl("amax", &amax_kernel); }
TORCH_LIBRARY_IMPL(octavo, CUDA, m) { m.impl("amax", &amax_kernel); }
TORCH_LIBRARY_IMPL(octavo, Meta, m) { m.impl("amax", &amax_meta); }
TORCH_LIBRARY_IMPL(octavo, Autograd, m) { m.impl("amax", &amax_autograd); }
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) { m.impl("amax", &below_autocast<&call_amax>::call); }
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) { m.impl("amax", &below_autocast<&call_amax>::call); }

}  // namespace octavo::ops
