"""FSDP2's shard of a weight that is gathered as FP8 bytes: what FSDP2 asks of it before and after a gathering.

Letters: N out features, K in features. FSDP2 shards w (N, K) by rows.

    tensorwise  one amax over all shards; each rank casts its rows and all gather the bytes; forward uses
                them by rows, backward transposed: the same bytes
    rowwise     forward: every row has its own scale, so each rank casts its rows by itself; backward:
                columns are scaled, by an amax over all shards, and the column-scaled bytes are gathered.
                Where forward runs again within backward, backward gathers both

Half the bytes of bf16 travel (three quarters in the last case), and the values are those of an unsharded
weight, bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor

from octavo import recipes
from octavo._library import ops
from octavo.distributed.gathered import GatheredWeight

aten = torch.ops.aten


class Casts:
    """What all wrappers of one weight share: how it is cast, and the amax where it is known already."""

    def __init__(self, recipe: str) -> None:
        self.recipe = recipe
        self.tensorwise = recipes.family(recipe) == "tensorwise"
        self.forward_in_backward = False  # rowwise under activation checkpointing
        self.mesh: Any = None  # of the last all-gather; precompute_float8_scales() asks for it
        self.outer_rows = 0
        self.amax: tuple[Tensor, ...] | None = None

    def set_forward_in_backward(self, value: bool) -> None:
        """Whether backward gathers forward's bytes too; tensorwise bytes serve both passes anyway."""
        self.forward_in_backward = value and not self.tensorwise

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

    def whole_amax(self, rows: Tensor, which: list[int]) -> Tensor:
        """Those of local_amax() that are asked for, of the whole weight, one after the other."""
        if self.amax is not None:
            return torch.cat([self.amax[i] for i in which])
        local = self.local_amax(rows)
        return maximise(torch.cat([local[i] for i in which]), self.mesh)

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


def maximise(amax: Tensor, mesh: Any) -> Tensor:
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
    def __new__(cls, tensor: Tensor, casts: Casts) -> ShardedWeight:
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
        if casts.tensorwise:
            inv_scale, scale = casts.scales(casts.whole_amax(rows, [0]), dtype)
            return (self._padded(_cast(rows, inv_scale, dtype)),), _Gathering(outer_size, scale, scale, None)

        in_backward = torch._C._current_graph_task_id() != -1
        by_row, by_column = not in_backward or casts.forward_in_backward, in_backward
        amax = casts.whole_amax(rows, [0] * by_row + [1] * by_column)
        row_amax, column_amax = amax[: outer_size[0]], amax[-outer_size[1] :]
        row_scale = column_scale = row_data = column_data = None
        if by_row:
            inv_scale, row_scale = casts.scales(row_amax, dtype)
            start = mesh.get_local_rank() * padded_rows(outer_size[0], mesh.size())
            row_data = self._padded(_cast(rows, inv_scale[start : start + rows.shape[0]].view(-1, 1), dtype))
        if by_column:
            inv_scale, column_scale = casts.scales(column_amax, dtype)
            column_data = self._padded(_cast(rows, inv_scale, dtype))
        if row_data is None:
            return (column_data,), _Gathering(outer_size, None, column_scale, None)
        if column_data is None:
            return (row_data,), _Gathering(outer_size, row_scale, None, None)
        # FSDP2's own gathering has one size in all passes, so the second kind of bytes takes one beside it.
        # FSDP2 waits for its own, which comes after.
        gathered = column_data.new_empty(mesh.size() * column_data.shape[0], column_data.shape[1])
        dist.all_gather_into_tensor(gathered, column_data, group=mesh.get_group())
        return (row_data,), _Gathering(outer_size, row_scale, column_scale, gathered)

    def _padded(self, data: Tensor) -> Tensor:
        """FSDP2 gathers shards of one size."""
        padded = padded_rows(self._casts.outer_rows, self._casts.mesh.size())
        if data.shape[0] == padded:
            return data
        return torch.cat([data, data.new_zeros(padded - data.shape[0], data.shape[1])])

    def fsdp_post_all_gather(self, all_gather_outputs, metadata, param_dtype, *, out=None):
        (data,) = all_gather_outputs
        size, row_scale, column_scale, column_bytes = metadata
        casts = self._casts
        weight = getattr(out, "_local_tensor", out)
        if out is None:
            scales = (1, 1) if casts.tensorwise else tuple(size)
            weight = GatheredWeight.of(data[: size[0]], scales, casts.forward_in_backward, param_dtype)
        for made in (row_scale, column_scale, column_bytes):
            # Made on FSDP2's stream and read on this one: without the record the next gathering, on its
            # stream, would write into this memory before this one has read it.
            if made is not None and made.is_cuda:
                made.record_stream(torch.cuda.current_stream())
        if column_bytes is not None:
            column_bytes = column_bytes[: size[0]]
        weight.fill(row_scale, column_scale, column_bytes)
        # What FSDP2 frees and allocates with its own buffers.
        own = weight._own_column_bytes
        return None if out is not None else (weight, () if own is None else (own,))


class _Gathering(NamedTuple):
    """What fsdp_pre_all_gather tells fsdp_post_all_gather besides the bytes FSDP2 gathers."""

    size: torch.Size
    row_scale: Tensor | None
    column_scale: Tensor | None
    column_bytes: Tensor | None
