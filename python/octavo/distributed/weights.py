"""Which weights FSDP2 gathers as FP8 bytes, and the linear over weights that are not plain tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from octavo import recipes
from octavo._arguments import check_module
from octavo._library import ops
from octavo.distributed.gathered import GatheredWeight
from octavo.distributed.sharded import Casts, ShardedWeight, know_amaxes


def _plain_state(module: nn.Module, state: dict, prefix: str, metadata: Any) -> None:
    """State dicts hold ordinary tensors that share the shard's memory: checkpoints know nothing of us."""
    value = state.get(prefix + "weight")
    local = getattr(value, "_local_tensor", value)
    if not isinstance(local, ShardedWeight):
        return
    plain = local._tensor.detach()
    if local is not value:
        plain = type(value)(plain, value._spec, requires_grad=False)
    state[prefix + "weight"] = plain


def float8_all_gather(module: nn.Module, *, activation_checkpointing: bool = False) -> nn.Module:
    """From here on FSDP2 gathers the weights of `module`'s Float8Linear modules as FP8 bytes. Call it after
    the conversion and before fully_shard (and after parallelize_module). Returns `module`.

    Recipes tensorwise and rowwise. Rowwise gathers once for each pass, so it wants
    fully_shard(..., reshard_after_forward=True). activation_checkpointing: whether forward runs again within
    backward, so that a rowwise weight's backward gathers the bytes of both passes; needed there (without it
    that forward is an error, compiled too), without a meaning for tensorwise. A second call sets it anew.
    Optimisers, gradients and state dicts see the weights in high precision, as before.

    Errors: ValueError for another recipe, no Float8Linear, a weight two modules share, or one that is
    sharded already.
    """
    from octavo.linear import Float8Linear

    check_module("float8_all_gather", module)
    linears = {n: m for n, m in module.named_modules() if isinstance(m, Float8Linear)}
    if not linears:
        raise ValueError("float8_all_gather: expected Float8Linear modules, got none; convert first")
    owners: dict[int, int] = {}
    for child in module.modules():
        for p in child.parameters(recurse=False):
            owners[id(p)] = owners.get(id(p), 0) + 1
    for name, linear in linears.items():
        family = recipes.family(linear.recipe)
        if family not in ("tensorwise", "rowwise"):
            raise ValueError(
                f"float8_all_gather: {name}: expected the recipe tensorwise or rowwise, got {linear.recipe}; "
                "leave the call out, and FSDP2 gathers the weights in high precision"
            )
        if owners[id(linear.weight)] > 1:
            raise ValueError(
                f"float8_all_gather: {name}: expected a weight of its own, got one that another module "
                "shares; leave this linear in high precision with filter_fqns"
            )
        if hasattr(linear.weight, "placements") and any(
            hasattr(m, "unshard") for m in module.modules()
        ):
            raise ValueError(
                f"float8_all_gather: {name}: expected a weight that is not sharded yet, got FSDP2's; call "
                "it before fully_shard"
            )
    for linear in linears.values():
        weight = linear.weight
        shard = getattr(weight, "_local_tensor", weight)
        if isinstance(shard, ShardedWeight):
            shard._casts.activation_checkpointing = activation_checkpointing
            continue
        casts = Casts(linear.recipe)
        casts.activation_checkpointing = activation_checkpointing
        if hasattr(weight, "_local_tensor"):  # tensor-parallel: the shard of a DTensor
            local = ShardedWeight(weight._local_tensor.detach(), casts)
            wrapped = type(weight)(local, weight._spec, requires_grad=False)
        else:
            wrapped = ShardedWeight(weight.detach(), casts)
        linear.weight = nn.Parameter(wrapped, requires_grad=weight.requires_grad)
        linear.register_state_dict_post_hook(_plain_state)
    return module


@torch.no_grad()
def precompute_float8_scales(module: nn.Module) -> None:
    """Finds the amaxes of all FP8-gathered weights of `module` in ONE reduction, for the all-gathers to
    come, instead of a small collective for each gather. Call it after every optimiser step: nobody
    checks that the weights are still those. Before the first forward, and where nothing is gathered in
    FP8, it does nothing. Collective: every rank calls it."""
    check_module("precompute_float8_scales", module)
    shards = []
    for parameter in module.parameters():
        local = getattr(parameter, "_local_tensor", None)
        if isinstance(local, ShardedWeight) and local._casts.mesh is not None:
            shards.append(local)
    if not shards:
        return
    meshes = {shard._casts.mesh for shard in shards}
    if len(meshes) != 1:
        raise ValueError(
            f"precompute_float8_scales: expected weights sharded over one mesh, got {len(meshes)}; call it "
            "for the modules of each"
        )
    know_amaxes(shards)


def special_linear(module: nn.Linear, x: Tensor) -> Tensor:
    """Float8Linear's forward over a weight that is no plain tensor: gathered in FP8, or a DTensor."""
    weight = module.weight
    if hasattr(weight, "placements"):
        from octavo.distributed.tensor_parallel import parallel_linear

        return parallel_linear(module, x)
    return local_linear(module, x, weight, module.bias)


def local_linear(module: nn.Linear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One rank's product."""
    gathered = isinstance(weight, GatheredWeight)
    if module.high_precision:
        if gathered:
            raise RuntimeError(
                "high_precision: expected weights gathered in high precision, got FP8 bytes; convert without "
                "float8_all_gather to evaluate so"
            )
        return nn.functional.linear(x, weight, bias)
    keep = "off" if gathered else module.keep_weight_transposed
    return ops.float8_linear(x, weight, bias, module.recipe, keep)
