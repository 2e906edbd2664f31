"""quantize and scaled_mm: the two operations everything is made of, for use by themselves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from octavo._library import ops


class ScaledTensor(NamedTuple):
    """One layout of a matrix: value = data * scale, each scale spread over its block.

    data: (M, K) in an FP8 dtype, or (K, M) for layout="transposed". scale: fp32, or e8m0 for mx1x32;
    tensorwise (1, 1), rowwise (rows, 1), colwise (1, columns), blocks one a block. granularity: the word
    it was made with.
    """

    data: Tensor
    scale: Tensor
    granularity: str


def quantize(
    x: Tensor,
    format: str = "e4m3fn",
    granularity: str = "rowwise",
    *,
    layout: str = "rows",
    scale_rounding: str = "none",
    mx_rounding: str = "rceil",
    amax: Tensor | None = None,
) -> ScaledTensor:
    """One layout of a matrix x (M, K), fp32, bf16 or fp16, in one pass over x.

    format: e4m3fn, e5m2, e4m3fnuz, e5m2fnuz. granularity: tensorwise, rowwise, colwise, 1x128, 128x1,
    128x128, mx1x32. layout: rows, or transposed, (K, M), quantised along M. scale_rounding: none, or
    power_of_two (down). mx_rounding: rceil, floor, ceil, even. Casts saturate; a NaN or Inf makes its own
    block NaN and no other. Not differentiable: asking for a gradient is an error.
    amax: fp32, one number a scale (tensorwise, rowwise, colwise): scales follow from it instead of from x.
    For a matrix of which x is a part: the maximum of what torch.ops.octavo.amax(part, [granularity]) gives
    for each part. Larger elements saturate, and nobody looks for NaN in x that amax has not.
    Errors: RuntimeError naming the argument, the known words and the nearest.
    """
    data, scale = ops.quantize(
        x, format, granularity, layout=layout, scale_rounding=scale_rounding, mx_rounding=mx_rounding, amax=amax
    )
    return ScaledTensor(data, scale, granularity)


def scaled_mm(
    a: ScaledTensor,
    b: ScaledTensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    fast_accumulation: bool = False,
    backend: str = "auto",
) -> Tensor:
    """(M, K) . (N, K)^T (+ bias): both operands by rows, accumulated in fp32, rounded once.

    a, b: what quantize() gave, in fitting granularities (tensorwise with tensorwise, rowwise with rowwise
    or tensorwise, 1x128 with 1x128 or 128x128, mx1x32 with mx1x32). bias: (N). backend: auto, reference
    (CPU), cublaslt, aten, emulated. Any sizes: padding happens inside; empty ones give empty or zero.
    Errors: RuntimeError for sizes, granularities or formats that do not go together (e5m2 with e5m2).
    """
    return ops.scaled_mm(
        a.data, a.scale, a.granularity, b.data, b.scale, b.granularity, bias,
        out_dtype=out_dtype, fast_accumulation=fast_accumulation, backend=backend,
    )
