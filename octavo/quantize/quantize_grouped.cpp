#include "octavo/quantize/quantize_grouped.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <vector>

#include "octavo/quantize/allocate.h"
#include "octavo/quantize/layout.h"
#include "octavo/quantize/offsets.h"
#include "octavo/quantize/quantize_device.h"

namespace octavo {
namespace {

void check_grouped_layout(const LayoutSpec& spec, const char* layout) {
  check_layout(spec, layout);
  TORCH_CHECK(!(spec.granularity == Granularity::tensorwise()), "spec.", layout,
              ".granularity: expected rowwise, 1x128 or mx1x32 for activations by groups, got ",
              "tensorwise: one scale for all experts' tokens would tie them together; use rowwise");
  TORCH_CHECK(spec.granularity == Granularity::rowwise() ||
                  spec.granularity == Granularity::block_1x128() || spec.granularity.mx,
              "spec.", layout, ".granularity: expected rowwise, 1x128 or mx1x32 for activations ",
              "by groups, got ", to_string(spec.granularity), "; use the one the product needs");
}

ScaledTensor empty_transposed(const LayoutSpec& spec, std::int64_t m, std::int64_t k,
                              std::int64_t experts, c10::Device device) {
  const std::int64_t columns = grouped_columns(m, experts, spec.granularity);
  if (spec.granularity.block_columns != 0) return empty_layout(spec, k, columns, device);
  return {.data = empty_on(device, {k, columns}, scalar_type(spec.format)),
          .scale = empty_on(device, {experts, k}, at::kFloat),
          .granularity = spec.granularity,
          .scale_layout = ScaleLayout::kPlain,
          .logical_sizes = {k, columns}};
}

// What `spec` makes of zeros: data 0, scales those of amax 0.
void fill_with_zeros(const LayoutSpec& spec, const at::Tensor& data, const at::Tensor& scale) {
  data.view(at::kByte).zero_();
  if (spec.granularity.mx) {
    scale.view(at::kByte).fill_(mx_code_of(0, spec.format, spec.mx_rounding));
  } else {
    scale.fill_(scale_of(inv_scale_of(0, spec.format, spec.scale_rounding)));
  }
}

// The part of a transposed layout that one group fills, as quantize_operand() would lay it out.
ScaledTensor group_columns(const ScaledTensor& whole, std::int64_t g, const Group& group) {
  ScaledTensor out = whole;
  out.data = whole.data.narrow(1, group.begin_transposed, group.size());
  const std::int64_t block = whole.granularity.block_columns;
  if (block == 0) {
    out.scale = whole.scale.select(0, g).unsqueeze(1);
  } else {
    const std::int64_t begin = group.begin_transposed / block, end = group.end_transposed / block;
    out.scale = whole.scale.narrow(1, begin, end - begin);
  }
  out.logical_sizes = {whole.rows(), group.size()};
  return out;
}

ScaledTensor group_rows(const ScaledTensor& whole, std::int64_t begin, std::int64_t end) {
  ScaledTensor out = whole;
  out.data = whole.data.narrow(0, begin, end - begin);
  out.scale = whole.scale.narrow(0, begin, end - begin);
  out.logical_sizes = {end - begin, whole.columns()};
  return out;
}

void zero_padding(const ScaledTensor& whole, const Group& group) {
  whole.data
      .narrow(1, group.begin_transposed + group.size(),
              group.end_transposed - group.begin_transposed - group.size())
      .view(at::kByte)
      .zero_();
}

// A group at a time, both layouts in one call, so that x is read as often as its scales ask for.
void quantize_grouped_cpu(const at::Tensor& x, const OperandSpec& spec, GroupedOperand& out) {
  const std::int64_t alignment =
      spec.transposed ? group_alignment(spec.transposed->granularity) : 1;
  const std::vector<Group> groups = groups_of(out.offs, alignment);
  const std::int64_t last = groups.back().end, last_transposed = groups.back().end_transposed;
  if (spec.rows) {
    const std::int64_t past = x.size(0) - last;
    if (past > 0) {
      fill_with_zeros(*spec.rows, out.rows.data.narrow(0, last, past),
                      out.rows.scale.narrow(0, last, past));
    }
    if (!spec.transposed) {
      QuantizedOperand all{.rows = group_rows(out.rows, 0, last), .transposed = {}};
      return quantize_cpu(x.narrow(0, 0, last), spec, all);
    }
  }
  std::int32_t* end_transposed = out.offs_transposed.mutable_data_ptr<std::int32_t>();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    QuantizedOperand part;
    if (spec.rows) part.rows = group_rows(out.rows, group.begin, group.end);
    part.transposed = group_columns(out.transposed, static_cast<std::int64_t>(g), group);
    quantize_cpu(x.narrow(0, group.begin, group.size()), spec, part);
    zero_padding(out.transposed, group);
    end_transposed[g] = static_cast<std::int32_t>(group.end_transposed);
  }
  const ScaledTensor& t = out.transposed;
  const std::int64_t block = t.granularity.block_columns;
  const std::int64_t past = t.columns() - last_transposed;
  fill_with_zeros(*spec.transposed, t.data.narrow(1, last_transposed, past),
                  block == 0 ? t.scale.narrow(0, 0, 0)
                             : t.scale.narrow(1, last_transposed / block, past / block));
}

void check_expert_layout(const LayoutSpec& spec, const char* layout) {
  check_layout(spec, layout);
  const Granularity& g = spec.granularity;
  TORCH_CHECK(g == Granularity::tensorwise() || g == Granularity::rowwise() ||
                  g == Granularity::block_128x128() || g.mx,
              "spec.", layout, ".granularity: expected tensorwise, rowwise, 128x128 or mx1x32 for ",
              "experts' weights, got ", to_string(g), "; use the one the product needs");
}

ScaledTensor empty_experts(const LayoutSpec& spec, std::int64_t experts, std::int64_t rows,
                           std::int64_t columns, c10::Device device) {
  const Granularity& g = spec.granularity;
  const std::int64_t r = g.scale_rows(rows), c = g.scale_columns(columns);
  ScaledTensor out{.data = empty_on(device, {experts, rows, columns}, scalar_type(spec.format)),
                   .scale = {},
                   .granularity = g,
                   .scale_layout = default_scale_layout(g),
                   .logical_sizes = {experts, rows, columns}};
  if (out.scale_layout == ScaleLayout::kPadded4) {
    const std::int64_t row = padded4(c);
    out.scale = padded_scale(experts * r, c, device).as_strided({experts, r, c}, {r * row, row, 1});
  } else {
    out.scale = empty_on(device, {experts, r, c}, g.mx ? at::kFloat8_e8m0fnu : at::kFloat);
  }
  return out;
}

void check_tensor(const char* argument, const at::Tensor& tensor, std::int64_t dimensions,
                  const char* sizes) {
  TORCH_CHECK(tensor.dim() == dimensions, argument, ": expected ", sizes, ", got ", tensor.dim(),
              " dimensions of sizes ", tensor.sizes(), "; reshape it first");
  check_operand(argument, tensor);
}

#if !OCTAVO_WITH_CUDA
[[noreturn]] void no_gpu_kernels(const char* argument, const at::Tensor& tensor) {
  TORCH_CHECK(false, argument, ": expected a CPU tensor, got one on ", tensor.device(),
              "; this build has no GPU kernels: build the preset cuda, or move it with ", argument,
              ".cpu()");
}
#endif

}  // namespace

GroupedOperand empty_grouped_operand(std::int64_t rows, std::int64_t columns,
                                     const at::Tensor& offs, const OperandSpec& spec) {
  const c10::Device device = offs.device();
  const std::int64_t experts = offs.size(0);
  GroupedOperand out;
  out.offs = offs;
  if (spec.rows) out.rows = empty_layout(*spec.rows, rows, columns, device);
  if (spec.transposed) {
    out.transposed = empty_transposed(*spec.transposed, rows, columns, experts, device);
    out.offs_transposed = empty_on(device, {experts}, at::kInt);
  }
  return out;
}

GroupedOperand quantize_grouped_operand(const at::Tensor& x, const at::Tensor& offs,
                                        const OperandSpec& spec) {
  check_tensor("x", x, 2, "a matrix (M, K)");
  TORCH_CHECK(spec.rows || spec.transposed,
              "spec: expected at least one layout, got neither rows nor transposed; set one");
  if (spec.rows) check_grouped_layout(*spec.rows, "rows");
  if (spec.transposed) check_grouped_layout(*spec.transposed, "transposed");
  const std::int64_t m = x.size(0), k = x.size(1);
  check_offsets("offs", offs, /*experts=*/-1, m, x.device());
  GroupedOperand out = empty_grouped_operand(m, k, offs, spec);
  if (x.is_cpu()) {
    quantize_grouped_cpu(x, spec, out);
    return out;
  }
#if OCTAVO_WITH_CUDA
  quantize_grouped_cuda(x, spec, out);
  return out;
#else
  no_gpu_kernels("x", x);
#endif
}

QuantizedOperand quantize_expert_weights(const at::Tensor& w, const OperandSpec& spec) {
  check_tensor("w", w, 3, "the experts' weights (E, N, K)");
  TORCH_CHECK(spec.rows || spec.transposed,
              "spec: expected at least one layout, got neither rows nor transposed; set one");
  if (spec.rows) check_expert_layout(*spec.rows, "rows");
  if (spec.transposed) check_expert_layout(*spec.transposed, "transposed");
  const std::int64_t experts = w.size(0), n = w.size(1), k = w.size(2);
  QuantizedOperand out;
  if (spec.rows) out.rows = empty_experts(*spec.rows, experts, n, k, w.device());
  if (spec.transposed) out.transposed = empty_experts(*spec.transposed, experts, k, n, w.device());
  if (!w.is_cpu()) {
#if OCTAVO_WITH_CUDA
    quantize_experts_cuda(w, spec, out);
    return out;
#else
    no_gpu_kernels("w", w);
#endif
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    QuantizedOperand part;
    if (spec.rows) part.rows = expert(out.rows, e);
    if (spec.transposed) part.transposed = expert(out.transposed, e);
    quantize_cpu(w.select(0, e), spec, part);
  }
  return out;
}

}  // namespace octavo
