"""Experts in FP8: grouped_linear, and the grouped products of a model's own expert modules."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from octavo import recipes
from octavo._arguments import check_callable, check_module
from octavo._library import ops
from octavo.convert import ModuleFilter, expert_parameters
from octavo.names import NameFilter, plain_name

log = logging.getLogger("octavo")


def grouped_linear(x: Tensor, w: Tensor, offs: Tensor, recipe: Any = recipes.DEFAULT) -> Tensor:
    """y[m] = x[m] . w[g]^T for the rows m of group g, with FP8 products: the linears of E experts.

    x: (M, K) fp32, bf16 or fp16, rows sorted by expert; w: (E, N, K); offs: (E) int32, END offset of each
    group, as torch._grouped_mm takes them; y: (M, N) in x's dtype. Differentiable in x and w. Rows past
    the last offset: zero in y and dx. An expert without tokens: dw exactly zero. No padding of groups.
    Gate and up are one call with w (E, 2F, K).

    recipe: rowwise, rowwise_with_gw_hp, blockwise, mxfp8 or an alias. Errors: ValueError for tensorwise
    (one scale for the tokens of all experts; use rowwise) and unknown names; RuntimeError for sizes,
    dtypes and offs.
    """
    return ops.float8_grouped_linear(x, w, offs, experts_recipe(recipe))


@functools.cache
def _experts_recipe(recipe: str) -> str:
    text = recipes.canonical(recipe)
    if text.startswith("tensorwise"):
        raise ValueError(
            "recipe: expected scales of each expert's own, got tensorwise, which has one for the tokens of "
            "all experts; use rowwise for experts"
        )
    return text


def experts_recipe(recipe: Any) -> str:
    """The canonical string of a recipe for experts. Errors: as grouped_linear()'s."""
    text = getattr(recipe, "value", recipe)
    return _experts_recipe(text if isinstance(text, str) else recipes.canonical(text))


def let_dynamo_see_grouped_mm() -> None:
    """torch.compile asks modes about public functions only. torch._grouped_mm, which models call, counts as
    one from here on. A release that moved this list makes compiled experts an error (nothing ran in FP8)."""
    try:
        from torch._dynamo.variables.torch import get_overridable_functions

        get_overridable_functions().add(torch._grouped_mm)
    except (ImportError, AttributeError):
        pass


class _FP8Products(TorchFunctionMode):
    """Inside: products with experts' weights are FP8 ones.

    Caught: torch._grouped_mm, torch.nn.functional.grouped_mm and transformers' fallback of it;
    torch.bmm and matmul of (E, C, K) with (E, K, N); and, for the loops over experts that models have for
    debugging, linear and matmul with one expert's matrix. Parameters are not touched, so FSDP,
    optimisers, state dicts and checkpoints see what they saw before.
    """

    def __init__(self, recipe: str, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self.recipe = recipe
        # This rank's sizes, where a weight is a DTensor.
        self.batches = [tuple(getattr(w, "_local_tensor", w).shape) for w in weights]
        self.matrices = {shape[1:] for shape in self.batches}
        self.caught = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "default":  # an OpOverload
            name = func.overloadpacket.__name__
        if name in ("_grouped_mm", "grouped_mm", "grouped_mm_fallback"):
            return self.grouped(*args, **kwargs)
        if name in ("linear", "matmul", "bmm", "mm") and len(args) > 1 and self.is_weight(name, args[1]):
            return self.product(name, *args, **kwargs)
        return func(*args, **kwargs)

    def is_weight(self, name: str, w: Tensor) -> bool:
        """Whether `w` has the sizes of experts' weights (of linear: (N, K), of the others: (.., K, N))
        and is no parameter by itself, as a linear inside the module would have."""
        if isinstance(w, nn.Parameter) and w.dim() == 2:
            return False
        shape = tuple(w.shape)
        if name == "linear":
            return shape in self.matrices
        known = self.batches if len(shape) == 3 else self.matrices
        return shape in known or (*shape[:-2], shape[-1], shape[-2]) in known

    def grouped(self, x, w, offs=None, bias=None, out_dtype=None):
        if w.dim() != 3 or offs is None or bias is not None:
            raise NotImplementedError(
                "FP8 experts: expected a grouped product of tokens (M, K) and weights (E, K, N) with offs "
                f"and no bias, got weights of {w.dim()} dimensions, offs {offs is not None}, bias "
                f"{bias is not None}; leave these experts in high precision with filter_fqns"
            )
        self.caught += 1
        y = ops.float8_grouped_linear(x, w.transpose(-2, -1), offs.to(torch.int32), self.recipe)
        return y if out_dtype is None else y.to(out_dtype)

    def product(self, name, x, w, bias=None):
        self.caught += 1
        w = w if name == "linear" else w.transpose(-2, -1)
        if w.dim() == 2:
            return ops.float8_linear(x, w, bias, self.recipe)
        tokens = x.shape[-2]
        ends = torch.arange(1, w.shape[0] + 1, device=x.device, dtype=torch.int32) * tokens
        y = ops.float8_grouped_linear(x.reshape(-1, x.shape[-1]), w, ends, self.recipe)
        return y.view(*x.shape[:-1], y.shape[-1])


class Float8Experts:
    """What convert_moe_training() adds to the class of an experts module."""

    recipe: str
    high_precision: bool = False

    def forward(self, *args, **kwargs):
        if self.high_precision:
            return super().forward(*args, **kwargs)
        mode = _FP8Products(self.recipe, expert_parameters(self).values())
        with mode:
            y = super().forward(*args, **kwargs)
        if mode.caught == 0 and (torch.compiler.is_compiling() or y.numel() > 0):
            raise RuntimeError(
                f"{type(self).__name__}: expected a grouped product (torch._grouped_mm, bmm, or linear with "
                "one expert's weights) in forward, got none, so nothing ran in FP8; call "
                "octavo.grouped_linear in it, or leave these experts in high precision with filter_fqns"
            )
        return y

    def extra_repr(self) -> str:
        inherited = super().extra_repr()
        return inherited + (", " if inherited else "") + f"recipe={self.recipe}"


@functools.cache
def converted_class(base: type) -> type:
    return type(f"Float8{base.__name__}", (Float8Experts, base), {"__module__": base.__module__})


def convert_moe_training(
    module: nn.Module,
    *,
    module_filter_fn: ModuleFilter | None = None,
    recipe: Any = recipes.DEFAULT,
    target_fqns: Iterable[str] = ("experts",),
    filter_fqns: Iterable[str] = (),
    allow_unmatched: bool = False,
) -> nn.Module:
    """Runs the products of a model's experts in FP8: modules that own 3-D weights (E, ., .) and whose name
    contains an entry of target_fqns and none of filter_fqns. In place; returns `module`. Dense linears are
    left alone (convert_to_float8_training), in either order.

    The modules keep their forward, parameters and state dict; the products in it are replaced while it
    runs: torch._grouped_mm, torch.nn.functional.grouped_mm, batched products of (E, C, K) and products
    with one expert's matrix. A forward with none of these is an error when it runs. A module that is
    converted already gets the new recipe.

    recipe: as grouped_linear()'s; fast accumulation in all products unless it says otherwise, as torchao.
    Errors: ValueError for tensorwise, for an entry that matches nothing unless allow_unmatched, and where
    nothing would be converted; TypeError for what is no module, no name or no function.
    """
    check_module("convert_moe_training", module)
    check_callable("convert_moe_training", "module_filter_fn", module_filter_fn, "(module, name) -> bool")
    text = experts_recipe(recipe)
    targets, names = NameFilter("target_fqns", target_fqns), NameFilter("filter_fqns", filter_fqns)
    chosen = []
    for fqn, child in module.named_modules():
        fqn = plain_name(fqn)
        if not expert_parameters(child):
            if isinstance(child, nn.Linear):
                names.match(fqn)
            continue
        target, left = targets.match(fqn), names.match(fqn)
        if target and not left and (module_filter_fn is None or module_filter_fn(child, fqn)):
            chosen.append(child)
    for list_ in (targets, names):
        complaint = list_.complaint()
        if complaint and not allow_unmatched:
            raise ValueError(complaint)
    if not chosen:
        raise ValueError(
            "convert_moe_training: nothing to convert: no module that owns 3-D weights is left by "
            f"target_fqns {list(targets.entries)} and the filters; name the experts' modules in target_fqns"
        )
    let_dynamo_see_grouped_mm()
    for child in chosen:
        if not isinstance(child, Float8Experts):
            child.__class__ = converted_class(type(child))
        child.recipe, child.high_precision = text, False
    log.info("converted %d modules of experts to %s", len(chosen), text)
    return module
