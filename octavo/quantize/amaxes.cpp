#include "octavo/quantize/amaxes.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "octavo/quantize/allocate.h"
#include "octavo/quantize/layout.h"
#include "octavo/quantize/quantize_device.h"

namespace octavo {
namespace {

// Where the amaxes of one granularity go.
at::Tensor& place_of(Amaxes& amaxes, const Granularity& granularity) {
  if (granularity == Granularity::tensorwise()) return amaxes.tensor;
  return granularity == Granularity::rowwise() ? amaxes.rows : amaxes.columns;
}

}  // namespace

at::Tensor find_amaxes(const at::Tensor& x, at::ArrayRef<Granularity> granularities) {
  TORCH_CHECK(x.dim() == 2, "x: expected a matrix (M, K), got ", x.dim(), " dimensions of sizes ",
              x.sizes(), "; flatten the leading dimensions with reshape({-1, K})");
  check_operand("x", x);
  TORCH_CHECK(!granularities.empty(),
              "granularities: expected at least one of tensorwise, rowwise and colwise, got none");
  std::int64_t count = 0;
  for (const Granularity& granularity : granularities) {
    TORCH_CHECK(granularity == Granularity::tensorwise() || granularity == Granularity::rowwise() ||
                    granularity == Granularity::colwise(),
                "granularities: expected tensorwise, rowwise or colwise, got ",
                to_string(granularity), "; quantise x, which finds a block's amax in its one read");
    TORCH_CHECK(std::count(granularities.begin(), granularities.end(), granularity) == 1,
                "granularities: expected each once, got ", to_string(granularity),
                " again; leave it out");
    count += granularity.scale_rows(x.size(0)) * granularity.scale_columns(x.size(1));
  }
  const at::Tensor all = empty_on(x.device(), {count}, at::kFloat);
  Amaxes out;
  std::int64_t first = 0;
  for (const Granularity& granularity : granularities) {
    const std::int64_t floats =
        granularity.scale_rows(x.size(0)) * granularity.scale_columns(x.size(1));
    place_of(out, granularity) = piece_of(all, 4 * first, {floats}, {1}, at::kFloat);
    first += floats;
  }
  if (x.is_cpu()) {
    find_amaxes_cpu(x, out);
    return all;
  }
#if OCTAVO_WITH_CUDA
  find_amaxes_cuda(x, all, out);
#else
  TORCH_CHECK(false, "x: expected a CPU tensor, got one on ", x.device(),
              "; this build has no GPU kernels: build the preset cuda, or move it with x.cpu()");
#endif
  return all;
}

}  // namespace octavo
