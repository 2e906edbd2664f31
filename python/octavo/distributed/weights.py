"""Weights that FSDP2 gathers as FP8 bytes, and the linear over weights that are not plain tensors.

Letters: N out features, K in features. FSDP2 shards w (N, K) by rows.

    tensorwise  one amax over all shards; each rank casts its rows and all gather the bytes; forward uses
                them by rows, backward transposed: the same bytes
    rowwise     forward: every row has its own scale, so each rank casts its rows by itself; backward:
                columns are scaled, by an amax over all shards, and the column-scaled bytes are gathered

Half the bytes of bf16 travel, and the values are those of an unsharded weight, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn

from octavo import recipes
from octavo._library import ops

aten = torch.ops.aten


class _Casts:
    """What all wrappers of one weight share: how it is cast, and the amax where it is known already."""

    def __init__(self, recipe: str) -> None:
        self.recipe = recipe
        self.tensorwise = recipes.family(recipe) == "tensorwise"
        self.mesh: Any = None  # of the last all-gather; precompute_float8_scales() asks for it
        self.outer_rows = 0
        self.amax: tuple[Tensor, ...] | None = None

    def dtype(self, device: torch.device) -> torch.dtype:
        facts = dict(line.split("=", 1) for line in ops.describe_device(device))
        fnuz = "flavour=fnuz" in self.recipe or (
            facts["flavour"] == "fnuz" and "flavour=ocp" not in self.recipe
        )
        return torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn

    def local_amax(self, rows: Tensor) -> tuple[Tensor, ...]:
        """fp32 amaxes of this rank's rows, to be maximised over ranks: (1) for tensorwise; (N), with
        zeros for the rows of others, and (K) for rowwise. An empty shard's amax is 0."""
        magnitude = rows.detach().abs().float()
        if self.tensorwise:
            return ((magnitude.amax() if rows.numel() else magnitude.new_zeros(())).view(1),)
        by_row = magnitude.new_zeros(self.outer_rows)
        if rows.numel():
            start = self.mesh.get_local_rank() * padded_rows(self.outer_rows, self.mesh.size())
            by_row[start : start + rows.shape[0]] = magnitude.amax(1)
        by_column = magnitude.amax(0) if rows.numel() else magnitude.new_zeros(rows.shape[1])
        return by_row, by_column

    def scales(self, amax: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(inv_scale, scale) of amaxes, as docs/numerics.md has them."""
        inv_scale = (torch.finfo(dtype).max / amax.double().clamp(min=1e-12)).float()
        if not self.tensorwise:  # rounded down to a power of two: the mantissa cleared, NaN left alone
            power = (inv_scale.view(torch.int32) & 0x7F800000).view(torch.float32)
            inv_scale = torch.where(inv_scale.isnan(), inv_scale, power)
        return inv_scale, 1 / inv_scale


def padded_rows(rows: int, ranks: int) -> int:
    """Rows of each rank's padded shard; the last ranks may have fewer, or none."""
    return -(-rows // ranks)


def _maximise(amax: Tensor, mesh: Any) -> Tensor:
    """The maximum over ranks, in one reduction. As integers, whose order is that of magnitudes and in
    which NaN is the largest: a maximum of floats may drop it."""
    bits = amax.view(torch.int32).clone()
    dist.all_reduce(bits, dist.ReduceOp.MAX, mesh.get_group())
    return bits.view(torch.float32)


def _cast(rows: Tensor, inv_scale: Tensor, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max
    return (rows.float() * inv_scale).clamp(-limit, limit).to(dtype).view(torch.uint8)


# What FSDP2, optimisers' set-up and .to() do to a shard and expect to stay a shard of the same kind.
_KEEPS_TYPE = {
    aten.detach.default, aten.empty_like.default, aten.new_zeros.default, aten.slice.Tensor,
    aten.copy_.default, aten.view.default, aten.as_strided.default, aten._to_copy.default,
    aten._pin_memory.default, aten.split.Tensor, aten.clone.default, aten.alias.default,
    aten.narrow.default, torch.ops.c10d.scatter_.default, torch.ops.c10d.broadcast_.default,
}  # fmt: skip


class ShardedWeight(torch.Tensor):
    """A weight, or FSDP2's shard of one, in high precision; what FSDP2 gathers of it is FP8."""

    @staticmethod
    def __new__(cls, tensor: Tensor, casts: _Casts) -> ShardedWeight:
        self = torch.Tensor._make_wrapper_subclass(
            cls, tensor.size(), strides=tensor.stride(), storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype, layout=tensor.layout, device=tensor.device,
            requires_grad=tensor.requires_grad,
        )
        self._tensor = tensor
        self._casts = casts
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        casts = None

        def unwrap(wrapped):
            nonlocal casts
            casts = casts or wrapped._casts
            return wrapped._tensor

        plain_args, plain_kwargs = pytree.tree_map_only(ShardedWeight, unwrap, (args, kwargs or {}))
        out = func(*plain_args, **plain_kwargs)
        if func is aten.copy_.default and isinstance(args[0], ShardedWeight):
            return args[0]
        if func not in _KEEPS_TYPE or (func is aten.copy_.default):
            return out
        return pytree.tree_map_only(torch.Tensor, lambda t: ShardedWeight(t, casts), out)

    def __tensor_flatten__(self):
        return ["_tensor"], self._casts

    @staticmethod
    def __tensor_unflatten__(inner, casts, outer_size, outer_stride):
        return ShardedWeight(inner["_tensor"], casts)

    def __repr__(self):
        return f"ShardedWeight({self._tensor}, recipe={self._casts.recipe})"

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        casts, rows = self._casts, self._tensor
        casts.mesh, casts.outer_rows = mesh, outer_size[0]
        dtype = casts.dtype(rows.device)
        backward = torch._C._current_graph_task_id() != -1
        if casts.amax is not None:
            amax = casts.amax[1 if backward and not casts.tensorwise else 0]
        else:
            amax = _maximise(casts.local_amax(rows)[1 if backward and not casts.tensorwise else 0], mesh)
        inv_scale, scale = casts.scales(amax, dtype)
        by_row = not casts.tensorwise and not backward
        if by_row:
            start = mesh.get_local_rank() * padded_rows(outer_size[0], mesh.size())
            inv_scale = inv_scale[start : start + rows.shape[0]].view(-1, 1)
        data = _cast(rows, inv_scale, dtype)
        padded = padded_rows(outer_size[0], mesh.size())
        if rows.shape[0] != padded:
            data = torch.cat([data, data.new_zeros(padded - rows.shape[0], rows.shape[1])])
        return (data,), (scale, backward, outer_size)

    def fsdp_post_all_gather(self, all_gather_outputs, metadata, param_dtype, *, out=None):
        (data,) = all_gather_outputs
        scale, backward, size = metadata
        if out is None:
            data = data[: size[0]]
            out = GatheredWeight(data, data.new_empty(1 if self._casts.tensorwise else size[0], dtype=torch.float32),
                                 data.new_empty(1 if self._casts.tensorwise else size[1], dtype=torch.float32),
                                 param_dtype)
            out.fill(scale, backward, self._casts.tensorwise)
            return out, (data,)
        local = getattr(out, "_local_tensor", out)
        local.fill(scale, backward, self._casts.tensorwise)
        return None


class GatheredWeight(torch.Tensor):
    """A gathered weight (N, K): its bytes, and scales by rows and by columns. Of a rowwise weight one pass
    has one kind of bytes; the other kind's scales are NaN, so that a use of the wrong ones is seen even
    inside a compiled graph."""

    @staticmethod
    def __new__(cls, data: Tensor, row_scale: Tensor, column_scale: Tensor, dtype: torch.dtype):
        self = torch.Tensor._make_wrapper_subclass(cls, data.size(), dtype=dtype, device=data.device)
        self._bytes, self._row_scale, self._column_scale = data, row_scale, column_scale
        self._pass = "any"
        return self

    def fill(self, scale: Tensor, backward: bool, tensorwise: bool) -> None:
        """Takes the scales of the pass. `.data`: autograd has saved these tensors, and the new values are
        what it is to find in them."""
        nan = float("nan")
        self._row_scale.data.copy_(scale) if tensorwise or not backward else self._row_scale.data.fill_(nan)
        self._column_scale.data.copy_(scale) if tensorwise or backward else self._column_scale.data.fill_(nan)
        self._pass = "any" if tensorwise else "backward" if backward else "forward"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.alias.default, aten.view.default, aten.as_strided.default):
            (w, *sizes) = args
            if not sizes or list(sizes[0]) == list(w.shape):
                return w._alias()
        if func in (ops.float8_linear.default, ops.float8_linear_forward.default):
            return _forward(func, *args, **kwargs)
        if func is ops.float8_linear_backward.default:
            return _backward(*args, **kwargs)
        raise RuntimeError(
            f"FP8 all-gather: expected a Float8Linear to use the gathered weight, got {func}; a weight used "
            "elsewhere too (tied, or read by its owner) is gathered in high precision: leave it out of "
            "float8_all_gather"
        )

    def _alias(self) -> GatheredWeight:
        twin = GatheredWeight(self._bytes, self._row_scale, self._column_scale, self.dtype)
        twin.__dict__ = self.__dict__  # one state: what a later gather fills is seen by saved aliases
        return twin

    def stand_in(self) -> Tensor:
        """A tensor of the weight's size and dtype that nobody reads."""
        return self._row_scale.new_empty(1, dtype=self.dtype).expand(self.shape)

    def __tensor_flatten__(self):
        return ["_bytes", "_row_scale", "_column_scale"], self.dtype

    @staticmethod
    def __tensor_unflatten__(inner, dtype, outer_size, outer_stride):
        return GatheredWeight(inner["_bytes"], inner["_row_scale"], inner["_column_scale"], dtype)

    def __repr__(self):
        return f"GatheredWeight({tuple(self.shape)}, {self.dtype})"


def _forward(func, x, w, bias, recipe, *flags):
    if w._pass == "backward":
        raise RuntimeError(
            "FP8 all-gather: expected forward to have the weight's row-scaled bytes, got backward's: "
            "activation checkpointing runs forward again within backward, which a rowwise weight cannot "
            "serve; use the recipe tensorwise, or leave these linears out of float8_all_gather"
        )
    if func is ops.float8_linear.default:
        return func(x, w.stand_in(), bias, recipe, "off", w._bytes, w._row_scale)
    need_dx, need_dw = flags[:2]
    return func(x, w.stand_in(), bias, recipe, need_dx, need_dw, False, w._bytes, w._row_scale)


def _backward(dy, x, x_scale, w, w_scale, recipe, dw_dtype, dbias_dtype=None):
    if w._pass == "forward":
        raise RuntimeError(
            "FP8 all-gather: expected backward to gather the weight's column-scaled bytes, got forward's: "
            "rowwise needs fully_shard(..., reshard_after_forward=True) for the module that owns the linear, "
            "the root too (its default is False); or use the recipe tensorwise"
        )
    return ops.float8_linear_backward_gathered(
        dy, x, x_scale, w._bytes, w._column_scale, recipe, dw_dtype, dbias_dtype
    )


def _transpose_and_run(dy, x, x_scale, w_bytes, w_scale, recipe, dw_dtype, dbias_dtype=None):
    return ops.float8_linear_backward(
        dy, x, x_scale, w_bytes.t().contiguous(), w_scale, recipe, dw_dtype, dbias_dtype
    )


# One operator with dy among its arguments: a transposition by itself could be moved by torch.compile into
# the forward graph, where the bytes are forward's.
_library = torch.library.Library("octavo", "FRAGMENT")
_library.define(
    "float8_linear_backward_gathered(Tensor dy, Tensor? x, Tensor? x_scale, Tensor w_bytes, Tensor w_scale, "
    "str recipe, ScalarType dw_dtype, ScalarType? dbias_dtype=None) -> (Tensor dx, Tensor dw, Tensor dbias)"
)
_library.impl("float8_linear_backward_gathered", _transpose_and_run, "CompositeExplicitAutograd")


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


def float8_all_gather(module: nn.Module) -> nn.Module:
    """From here on FSDP2 gathers the weights of `module`'s Float8Linear modules as FP8 bytes. Call it after
    the conversion and before fully_shard (and after parallelize_module). Returns `module`.

    Recipes tensorwise and rowwise. Rowwise gathers once for each pass, so it wants
    fully_shard(..., reshard_after_forward=True), and no activation checkpointing. Optimisers, gradients and
    state dicts see the weights in high precision, as before.

    Errors: ValueError for another recipe, no Float8Linear, a weight two modules share, or one that is
    sharded already.
    """
    from octavo.linear import Float8Linear

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
        if isinstance(getattr(weight, "_local_tensor", weight), ShardedWeight):
            continue
        casts = _Casts(linear.recipe)
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
    come, instead of one for each gather. Call it after every optimiser step: nobody checks that the
    weights are still those. Before the first forward, and where nothing is gathered in FP8, it does
    nothing. Collective: every rank calls it."""
    shards = []
    for parameter in module.parameters():
        local = getattr(parameter, "_local_tensor", None)
        if isinstance(local, ShardedWeight) and local._casts.mesh is not None:
            shards.append(local)
    if not shards:
        return
    amaxes = [shard._casts.local_amax(shard._tensor) for shard in shards]
    meshes = {shard._casts.mesh for shard in shards}
    if len(meshes) != 1:
        raise ValueError(
            f"precompute_float8_scales: expected weights sharded over one mesh, got {len(meshes)}; call it "
            "for the modules of each"
        )
    flat = torch.cat([part for parts in amaxes for part in parts])
    flat = _maximise(flat, meshes.pop())
    pieces = iter(flat.split([part.numel() for parts in amaxes for part in parts]))
    for shard, parts in zip(shards, amaxes):
        shard._casts.amax = tuple(next(pieces) for _ in parts)


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
