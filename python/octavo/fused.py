"""Blocks that cross the FP8 boundary as one module, so that nothing depends on what a compiler fuses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from octavo import recipes
from octavo._library import ops
from octavo.linear import Float8Linear, why_not_convertible

_PLAIN = (nn.Parameter, torch.Tensor)
_ONE_OPERATOR = hasattr(ops, "float8_swiglu_mlp")


def _check_linears(block: str, linears: dict[str, Any]) -> None:
    for name, linear in linears.items():
        refusal = why_not_convertible(linear)
        if refusal:
            raise (ValueError if isinstance(linear, nn.Linear) else TypeError)(f"{block}: {name}: {refusal}")


def _converted(linear: nn.Linear, recipe: Any) -> Float8Linear:
    if isinstance(linear, Float8Linear) and linear.recipe == recipes.canonical(recipe):
        return linear
    return Float8Linear.from_float(linear, recipe=recipe)


def _sizes(linear: nn.Linear) -> str:
    return f"({linear.out_features}, {linear.in_features})"


class SwiGLUMLP(nn.Module):
    """y = (silu(x . gate_proj^T) * (x . up_proj^T)) . down_proj^T: a Llama block's network, one operator each
    way.

    x: (..., D); weights of gate_proj and up_proj (F, D), of down_proj (D', F); y: (..., D') in x's dtype. x is
    quantised once for gate and up; silu(gate) * up goes to the last product quantised, and so do the
    gradients of gate and up. The results are those of three Float8Linear and octavo's swiglu (dx rounds a sum
    once more on GPUs). Names of parameters are Hugging Face's: gate_proj, up_proj, down_proj.

        layer.mlp = octavo.SwiGLUMLP(layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)

    Biases, weights that FSDP2 gathers in FP8, and weights that octavo.WeightCache holds take the three linears
    one after the other. Errors: ValueError for a recipe that does not exist and for weights whose sizes do not go
    together; TypeError for what is no linear.
    """

    def __init__(
        self, gate_proj: nn.Linear, up_proj: nn.Linear, down_proj: nn.Linear, *, recipe: Any = recipes.DEFAULT
    ) -> None:
        super().__init__()
        _check_linears("SwiGLUMLP", {"gate_proj": gate_proj, "up_proj": up_proj, "down_proj": down_proj})
        if (up_proj.out_features, up_proj.in_features) != (gate_proj.out_features, gate_proj.in_features):
            raise ValueError(
                f"SwiGLUMLP: up_proj: expected a weight (F, D) as gate_proj's {_sizes(gate_proj)}, got "
                f"{_sizes(up_proj)}; pass both projections of one network"
            )
        if down_proj.in_features != gate_proj.out_features:
            raise ValueError(
                f"SwiGLUMLP: down_proj: expected a weight (D', F) with F = {gate_proj.out_features}, what gate_proj "
                f"gives, got {_sizes(down_proj)}; pass the projection that follows them"
            )
        self.gate_proj = _converted(gate_proj, recipe)
        self.up_proj = _converted(up_proj, recipe)
        self.down_proj = _converted(down_proj, recipe)

    def _one_operator(self) -> bool:
        return _ONE_OPERATOR and all(
            linear.bias is None
            and type(linear.weight) in _PLAIN
            and not linear.high_precision
            and not linear.quantised_weight
            and linear.recipe == self.down_proj.recipe
            for linear in (self.gate_proj, self.up_proj, self.down_proj)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self._one_operator():
            return ops.float8_swiglu_mlp(
                x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight, self.down_proj.recipe,
                self.down_proj.keep_weight_transposed,
            )
        if self.down_proj.high_precision:
            return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(ops.swiglu(self.gate_proj(x), self.up_proj(x)))


class RMSNormLinear(nn.Module):
    """RMSNorm, then one or several linears of its result: y_i = rms_norm(x) . w_i^T (+ bias_i).

    norm: a module with weight (D) and eps (torch.nn.RMSNorm, or Hugging Face's with variance_epsilon);
    linears: by name, as q_proj=..., k_proj=...; each becomes a Float8Linear child of that name, the norm
    keeps its own. x: (..., D); returns y (..., N), a tuple of them where there are several linears. The norm is
    computed in fp32 and rounded once, in one pass each way on GPUs; it keeps x and one number a row for
    backward, and the linears keep FP8: the normalised x is not kept.

    Errors: ValueError without a linear, for one that does not take D features, and for a name that is taken;
    TypeError for a norm without weight and for what is no linear.
    """

    def __init__(self, norm: nn.Module, *, recipe: Any = recipes.DEFAULT, **linears: nn.Linear) -> None:
        super().__init__()
        if not linears:
            raise ValueError("RMSNormLinear: expected at least one linear, got none; pass it by name, as q_proj=")
        weight = getattr(norm, "weight", None)
        if not isinstance(norm, nn.Module) or not isinstance(weight, Tensor) or weight.dim() != 1:
            raise TypeError(
                f"RMSNormLinear: norm: expected a module with a weight (D), got {type(norm).__name__}; pass a "
                "torch.nn.RMSNorm with elementwise_affine=True, or Hugging Face's"
            )
        _check_linears("RMSNormLinear", linears)
        for name, linear in linears.items():
            if linear.in_features != len(weight):
                raise ValueError(
                    f"RMSNormLinear: {name}: expected a weight (N, {len(weight)}) for what the norm gives, got "
                    f"{_sizes(linear)}; pass a linear of that input"
                )
            if hasattr(nn.Module, name) or name == "eps":
                raise ValueError(
                    f"RMSNormLinear: {name}: expected a name of the linear's own, got one the module has; pass it "
                    f"as {name}_proj="
                )
        eps = getattr(norm, "eps", None)
        eps = getattr(norm, "variance_epsilon", eps) if eps is None else eps
        self.norm = norm
        self.eps = torch.finfo(norm.weight.dtype).eps if eps is None else float(eps)
        self._names = list(linears)
        for name, linear in linears.items():
            setattr(self, name, _converted(linear, recipe))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        h = ops.rms_norm(x, self.norm.weight, self.eps)
        results = tuple(getattr(self, name)(h) for name in self._names)
        return results[0] if len(results) == 1 else results
