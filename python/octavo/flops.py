"""What torch.utils.flop_counter, and with it torch.compile's activation memory budget, counts for our operators:
two for each multiplication and addition of the products, as for torch.nn.Linear; quantising counts nothing."""

from __future__ import annotations

import math

from torch.utils.flop_counter import register_flop_formula

from octavo._library import ops


@register_flop_formula([ops.float8_linear, ops.float8_linear_forward, ops.float8_grouped_linear,
                        ops.float8_grouped_linear_forward])
def _linear(x, w, *args, out_shape=None, **kwargs) -> int:
    """x (..., K), w (N, K) or (E, N, K): every row belongs to one group."""
    return 2 * math.prod(x) * w[-2]


@register_flop_formula([ops.float8_linear_backward, ops.float8_grouped_linear_backward])
def _linear_backward(dy, x, x_scale, w, w_scale, *args, out_shape=None, **kwargs) -> int:
    """dy (..., N); x (K, M) with a scale or (..., K) without; w (..., K, N) with a scale or (..., N, K) without. Each
    is there where its product is wanted."""
    total = 0
    for operand, width in ((x, x and (x[0] if x_scale else x[-1])), (w, w and (w[-2] if w_scale else w[-1]))):
        total += 2 * math.prod(dy) * width if operand else 0
    return total


@register_flop_formula([ops.float8_swiglu_mlp, ops.float8_swiglu_mlp_forward])
def _mlp(x, w_gate, w_up, w_down, *args, out_shape=None, **kwargs) -> int:
    """x (..., D), w_gate and w_up (F, D), w_down (D', F)."""
    rows = math.prod(x[:-1])
    return 2 * rows * w_gate[0] * (2 * x[-1] + w_down[0])


@register_flop_formula(ops.float8_swiglu_mlp_backward)
def _mlp_backward(dy, gate, up, x, x_scale, h, h_scale, w_gate, w_gate_scale, w_up, w_up_scale, w_down,
                  w_down_scale, recipe, need_dx, *args, out_shape=None, **kwargs) -> int:
    """dy (..., D'), gate (M, F); the weights' gradients where h is there. dh is always made, dx where needed."""
    inner = gate[0] * gate[1]
    width = w_gate[0] if w_gate_scale else w_gate[1]
    return 2 * inner * (dy[-1] * (2 if h else 1) + 2 * width * (bool(need_dx) + (x is not None)))


@register_flop_formula([ops.float8_experts, ops.float8_experts_forward])
def _experts(x, w_gate_up, w_down, *args, out_shape=None, **kwargs) -> int:
    """x (M, D), w_gate_up (E, 2F, D), w_down (E, D', F)."""
    return 2 * x[0] * (w_gate_up[1] * x[1] + w_down[1] * w_gate_up[1] // 2)


@register_flop_formula(ops.float8_experts_backward)
def _experts_backward(dy, gate_up, x, x_scale, h, h_scale, w_gate_up, w_gate_up_scale, w_down, w_down_scale, offs,
                      recipe, need_dx, *args, out_shape=None, **kwargs) -> int:
    """dy (M, D'), gate_up (M, 2F)."""
    rows, width = gate_up[0] * gate_up[1], w_gate_up[1] if w_gate_up_scale else w_gate_up[2]
    return rows * dy[-1] * (2 if h else 1) + 2 * rows * width * (bool(need_dx) + (x is not None))


@register_flop_formula(ops.scaled_mm)
def _scaled_mm(a, a_scale, a_granularity, b, *args, out_shape=None, **kwargs) -> int:
    """a (M, K), b (N, K)."""
    return 2 * math.prod(a) * b[0]


@register_flop_formula(ops.scaled_grouped_mm)
def _scaled_grouped_mm(a, a_scale, a_granularity, b, *args, out_shape=None, **kwargs) -> int:
    """a (M, K), b (E, N, K), by groups of rows; a (N, M), b (K, M), by groups of columns."""
    return 2 * math.prod(a) * (b[1] if len(b) == 3 else b[0])
