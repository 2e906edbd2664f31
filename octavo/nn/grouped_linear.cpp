#include "octavo/nn/grouped_linear.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include "octavo/quantize/offsets.h"

namespace octavo::nn {
namespace {

void check(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs) {
  TORCH_CHECK(x.dim() == 2 && w.dim() == 3 && x.size(1) == w.size(2),
              "grouped_linear: x (M, K) and w (E, N, K) must agree in K, got ", x.sizes(), " and ",
              w.sizes(), "; transpose w if it is stored (E, K, N)");
  TORCH_CHECK(x.scalar_type() == w.scalar_type(), "grouped_linear: w: expected x's dtype, ",
              x.scalar_type(), ", got ", w.scalar_type(), "; convert one of them");
  check_offsets("offs", offs, w.size(0), x.size(0), x.device());
  if (!x.device().is_cpu()) return;
  const std::int32_t last = offs.const_data_ptr<std::int32_t>()[offs.size(0) - 1];
  TORCH_CHECK(last == x.size(0), "offs: expected the last END offset to be the number of rows, ",
              x.size(0), ", got ", last, "; leave out the rows that belong to no group");
}

// out[m,:] = a[m,:] . b[g] for the rows of group g: (M, K) x (E, K, N) -> (M, N).
at::Tensor rows_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& offs) {
  if (a.size(0) == 0) return at::zeros({0, b.size(2)}, a.options());
  if (!a.device().is_cpu()) return at::_grouped_mm(a, b, offs);
  at::Tensor out = at::empty({a.size(0), b.size(2)}, a.options());
  std::int64_t expert = 0;
  for (const Group& group : groups_of(offs, /*alignment=*/1)) {
    const at::Tensor b_KN = b.select(0, expert++);
    if (group.size() == 0) continue;
    at::Tensor rows = out.narrow(0, group.begin, group.size());
    at::mm_out(rows, a.narrow(0, group.begin, group.size()), b_KN);
  }
  return out;
}

// out[g] = a[rows of g]^T . b[rows of g]: (M, N), (M, K) -> (E, N, K).
at::Tensor groups_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& offs) {
  if (!a.device().is_cpu() && a.size(0) > 0) return at::_grouped_mm(a.t(), b, offs);
  at::Tensor out = at::zeros({offs.size(0), a.size(1), b.size(1)}, a.options());
  if (a.size(0) == 0) return out;
  std::int64_t expert = 0;
  for (const Group& group : groups_of(offs, /*alignment=*/1)) {
    at::Tensor out_NK = out.select(0, expert++);
    if (group.size() == 0) continue;
    at::mm_out(out_NK, a.narrow(0, group.begin, group.size()).t(),
               b.narrow(0, group.begin, group.size()));
  }
  return out;
}

class GroupedLinear : public torch::autograd::Function<GroupedLinear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w, const at::Tensor& offs) {
    // What the other operand's gradient needs, and no more.
    context->save_for_backward(
        {w.requires_grad() ? x : at::Tensor(), x.requires_grad() ? w : at::Tensor(), offs});
    return rows_product(x, w.transpose(1, 2), offs);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "grouped_linear: second derivatives (create_graph) are not implemented");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &offs = saved[2];
    const at::Tensor dy = grads[0].contiguous();
    return {w.defined() ? rows_product(dy, w, offs) : at::Tensor(),
            x.defined() ? groups_product(dy, x, offs) : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs) {
  check(x, w, offs);
  return GroupedLinear::apply(x, w, offs);
}

}  // namespace octavo::nn
