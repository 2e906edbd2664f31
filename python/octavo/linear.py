"""Float8Linear: torch.nn.Linear with FP8 products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from octavo import recipes
from octavo._arguments import check_module
from octavo._library import ops

_PLAIN = (nn.Parameter, torch.Tensor)


class Float8Linear(nn.Linear):
    """y = x . weight^T + bias with FP8 products in forward and backward, as the recipe says.

    x: (..., K) fp32, bf16 or fp16; weight: (N, K), bias: (N) or none, each of its own dtype;
    y: (..., N) in x's dtype. Gradients have their tensor's dtype. Under autocast x is cast, the weight is
    quantised from its own dtype. Parameters and state dict are torch.nn.Linear's: strict loads work both
    ways. One operator each way, so torch.compile(fullgraph=True) takes it, one graph for every length.

    recipe: any name octavo.recipes.canonical() reads. keep_weight_transposed: "auto", "on" or "off":
    whether the weight's transposed FP8 layout is kept from forward to backward or made again.

    Errors: ValueError for a recipe or word that does not exist; RuntimeError from the operator for sizes,
    dtypes or devices that do not fit.
    """

    recipe: str
    keep_weight_transposed: str
    high_precision: bool = False
    """True inside `with octavo.high_precision(model)`: torch's own linear runs."""
    quantised_weight: tuple[Tensor, ...]
    """What octavo.WeightCache made of the weight; empty outside of one."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: str = recipes.DEFAULT,
        keep_weight_transposed: str = "auto",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._configure(recipe, keep_weight_transposed)

    def _configure(self, recipe: Any, keep_weight_transposed: str) -> None:
        if keep_weight_transposed not in ("auto", "on", "off"):
            raise ValueError(
                f"keep_weight_transposed: expected auto, on or off, got {keep_weight_transposed!r}; leave it out "
                "(auto decides by the number of tokens), or write off to save memory"
            )
        self.recipe = recipes.canonical(recipe)
        self.keep_weight_transposed = keep_weight_transposed
        self.high_precision = False  # of the instance, or a compiled graph would be made again
        self.quantised_weight = ()

    @classmethod
    def from_float(
        cls,
        mod: nn.Linear,
        config: Any = None,
        *,
        recipe: Any = None,
        keep_weight_transposed: str = "auto",
    ) -> Float8Linear:
        """A Float8Linear with the parameters of `mod`: the same tensors, so tied weights stay tied,
        optimisers keep working and nothing is allocated, on the meta device too. Hooks, buffers and
        attributes come along.

        config: octavo.compat.torchao's (or torchao's) Float8LinearConfig; recipe: a name; both None:
        rowwise. Errors: ValueError for both at once, for a subclass with a forward of its own (its
        meaning would be lost), for parametrised weights, and where float8_all_gather holds the weight to
        another recipe.
        """
        from octavo.convert import settings_of  # it reads configurations, and imports this module

        refusal = why_not_convertible(mod)
        if refusal:
            raise ValueError(f"Float8Linear.from_float: {refusal}")
        settings = settings_of(recipe, config, keep_weight_transposed)
        settings.check_device(mod.weight.device)
        refusal = gathering_refuses(mod.weight, settings.recipe)
        if refusal:
            raise ValueError(f"Float8Linear.from_float: {refusal}")
        # A shallow copy of what a module is, with dictionaries of its own.
        new = cls.__new__(cls)
        new.__dict__.update(
            {k: v.copy() if isinstance(v, dict) else v for k, v in mod.__dict__.items()}
        )
        new._configure(settings.recipe, settings.keep_weight_transposed)
        shard = sharded_weight(new.weight)
        if shard is not None:
            shard.set_recipe(new.recipe)
        if settings.fsdp_all_gather:
            from octavo.distributed import float8_all_gather

            float8_all_gather(new)
        return new

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        if type(weight) not in _PLAIN:
            from octavo.distributed.weights import special_linear

            return special_linear(self, input)
        if self.high_precision:
            return nn.functional.linear(input, weight, self.bias)
        return ops.float8_linear(
            input, weight, self.bias, self.recipe, self.keep_weight_transposed,
            *self.quantised_weight,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe}"


def why_not_convertible(mod: nn.Module) -> str:
    """What keeps a torch.nn.Linear from becoming a Float8Linear; an empty string where nothing does."""
    name = type(mod).__name__
    if isinstance(mod, type):
        return f"expected a torch.nn.Linear, got the class {mod.__name__}; pass an instance of it: {mod.__name__}(...)"
    if not isinstance(mod, nn.Linear):
        return f"expected a torch.nn.Linear, got {name}; pass the linear itself"
    if torch.nn.utils.parametrize.is_parametrized(mod):
        return (
            f"expected a plain weight, got the parametrised one of {name}; remove the parametrisation, "
            "or leave the linear in high precision with filter_fqns"
        )
    if isinstance(mod.weight, nn.UninitializedParameter):
        return f"expected a weight, got {name}'s, which has no sizes yet; run the model once before"
    if type(mod).forward not in (nn.Linear.forward, Float8Linear.forward):
        return (
            f"expected torch.nn.Linear's forward, got that of {name}, which FP8 products would "
            "replace; leave it in high precision with filter_fqns, or convert a plain linear"
        )
    return ""


def sharded_weight(weight: Tensor) -> Any:
    """The ShardedWeight that `weight` is, or a DTensor of one; None where FSDP2 gathers no FP8."""
    local = getattr(weight, "_local_tensor", weight)
    if type(local) in _PLAIN:
        return None
    from octavo.distributed.sharded import ShardedWeight

    return local if isinstance(local, ShardedWeight) else None


def gathering_refuses(weight: Tensor, recipe: str) -> str:
    """What keeps a weight that FSDP2 gathers in FP8 from another recipe; an empty string where nothing does."""
    shard = sharded_weight(weight)
    return "" if shard is None else shard.refuses(recipe)


@contextlib.contextmanager
def high_precision(model: nn.Module) -> Iterator[nn.Module]:
    """Runs a converted model without FP8 while the scope lasts: linears are torch.nn.functional.linear,
    experts their module's own products. Nothing is reallocated, parameters stay the tensors they are.
    Before and after torch.compile: a compiled model gets a second graph, once. Scopes nest.

    Errors: ValueError where the model holds nothing converted; TypeError for what is no module.
    """
    check_module("high_precision", model, "model")
    converted = [m for m in model.modules() if hasattr(type(m), "high_precision")]
    if not converted:
        raise ValueError(
            "high_precision: expected a converted model, got one without Float8Linear or FP8 experts; "
            "convert it first, or leave the scope out"
        )
    before = [module.high_precision for module in converted]
    try:
        for module in converted:
            module.high_precision = True
        yield model
    finally:
        for module, value in zip(converted, before):
            module.high_precision = value
