"""convert_to_float8_training: the linears of a model in FP8, in two lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from octavo import recipes
from octavo._arguments import check_callable, check_module
from octavo.linear import Float8Linear, gathering_refuses, why_not_convertible
from octavo.names import NameFilter, plain_name

log = logging.getLogger("octavo")

ModuleFilter = Callable[[nn.Module, str], bool]


@dataclass(frozen=True)
class LinearSettings:
    """What a recipe's name or a configuration comes to."""

    recipe: str
    keep_weight_transposed: str = "auto"
    fsdp_all_gather: bool = False
    emulate: bool = False

    def check_device(self, device: torch.device) -> None:
        if self.emulate and device.type == "cuda":
            raise ValueError(
                "config: emulate=True has no meaning on a GPU: the device decides what is native and what "
                "emulated (python -m octavo info prints it); leave the field out"
            )


def settings_of(
    recipe: Any, config: Any, keep_weight_transposed: str = "auto"
) -> LinearSettings:
    """A recipe's name or a Float8LinearConfig; both None: rowwise; both given: ValueError."""
    if recipe is not None and config is not None:
        raise ValueError("recipe and config: expected one of them, got both; leave one out")
    if config is not None:
        from octavo.compat.torchao import settings_of_config

        return settings_of_config(config)
    name = recipes.DEFAULT if recipe is None else recipe
    return LinearSettings(recipes.canonical(name), keep_weight_transposed)


def is_small(in_features: int, out_features: int) -> bool:
    """Whether auto_filter_small leaves a linear in high precision: a side below 64, or fewer than
    256 x 256 weights, as octavo::nn::is_small()."""
    return in_features * out_features < 256 * 256 or min(in_features, out_features) < 64


def expert_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The 3-D parameters a module owns itself: weights (E, ., .) of experts. torch's own modules
    (convolutions, Bilinear) have 3-D weights of another meaning."""
    if type(module).__module__.startswith("torch.nn.modules"):
        return {}
    return {n: p for n, p in module.named_parameters(recurse=False) if p.dim() == 3}


def _owner_reads_weight(module: nn.Module) -> bool:
    """Linears of torch.nn.MultiheadAttention, which multiplies by their weights itself."""
    return type(module).__name__ == "NonDynamicallyQuantizableLinear"


def convert_to_float8_training(
    module: nn.Module,
    *,
    module_filter_fn: ModuleFilter | None = None,
    config: Any = None,
    recipe: Any = None,
    filter_fqns: Iterable[str] = (),
    allow_unmatched: bool = False,
    auto_filter_small: bool = False,
    keep_weight_transposed: str = "auto",
) -> nn.Module:
    """Replaces the torch.nn.Linear modules of `module` by Float8Linear, in place, and returns it; a root
    that is itself a linear is returned converted. Parameters stay the tensors they are: ties, optimisers
    and the meta device keep working, nothing is allocated.

    recipe: a name (octavo.recipes.names(), aliases()); config: a Float8LinearConfig of
    octavo.compat.torchao or torchao. Both None: rowwise.
    filter_fqns: linears whose name contains an entry stay in high precision; entries match the model's own
    names, Hugging Face's and torchtitan's. module_filter_fn(linear, name): asked for every other linear,
    False keeps it in high precision. auto_filter_small: leaves linears for which is_small() holds.
    keep_weight_transposed: Float8Linear's; "off" saves memory. A config says it itself
    (force_recompute_fp8_weight_in_bwd).

    Errors, before anything is changed: ValueError for both recipe and config, for an entry that matches
    nothing unless allow_unmatched, for a linear with a forward of its own or a parametrised weight that
    nothing leaves out, for one whose weight float8_all_gather holds to another recipe, and where nothing
    would be converted; TypeError for what is no module, no name or no function.
    """
    check_module("convert_to_float8_training", module)
    check_callable("convert_to_float8_training", "module_filter_fn", module_filter_fn, "(linear, name) -> bool")
    settings = settings_of(recipe, config, keep_weight_transposed)
    names = NameFilter("filter_fqns", filter_fqns)
    chosen: list[tuple[str, nn.Linear]] = []
    left: dict[str, str] = {}
    refusals: list[str] = []
    # remove_duplicate: a module registered twice counts once, and is replaced in both places.
    for fqn, child in module.named_modules():
        fqn = plain_name(fqn)
        if not isinstance(child, nn.Linear):
            if expert_parameters(child):  # "experts" is a name like any other
                names.match(fqn)
            continue
        entry = names.match(fqn)
        refusal = why_not_convertible(child) or gathering_refuses(child.weight, settings.recipe)
        if entry:
            left[fqn] = f"filter_fqns has '{entry}'"
        elif module_filter_fn is not None and not module_filter_fn(child, fqn):
            left[fqn] = "module_filter_fn"
        elif _owner_reads_weight(child):
            left[fqn] = "its owner reads the weight itself"
        elif auto_filter_small and is_small(child.in_features, child.out_features):
            left[fqn] = "auto_filter_small"
        elif refusal:
            refusals.append(f"{fqn or '(the root module)'}: {refusal}")
        else:
            chosen.append((fqn, child))
    if refusals:
        raise ValueError("convert_to_float8_training: " + "; ".join(refusals))
    complaint = names.complaint()
    if complaint and not allow_unmatched:
        raise ValueError(complaint)
    if not chosen:
        why = "the filters leave out every linear; remove a filter" if left else (
            "the module holds no torch.nn.Linear; pass the model that does")
        raise ValueError(f"convert_to_float8_training: nothing to convert: {why}")
    for _, child in chosen:
        settings.check_device(child.weight.device)

    converted = {
        id(child): Float8Linear.from_float(
            child, config=config, recipe=None if config is not None else settings.recipe,
            keep_weight_transposed=settings.keep_weight_transposed,
        )
        for _, child in chosen
    }
    if id(module) in converted:
        return converted[id(module)]
    for parent in module.modules():
        for name, child in list(parent._modules.items()):
            if id(child) in converted:
                setattr(parent, name, converted[id(child)])
    log.info("converted %d of %d linears to %s", len(chosen), len(chosen) + len(left), settings.recipe)
    for fqn, why in left.items():
        log.debug("%s stays in high precision: %s", fqn, why)
    return module
