"""FSDP2's shard of a weight that is gathered as FP8 bytes: what FSDP2 asks of it before and after a gathering.

Letters: N out features, K in features. FSDP2 shards w (N, K) by rows.

    tensorwise  one amax over all shards; each rank casts its rows and all gather the bytes; forward uses
                them by rows, backward transposed: the same bytes
    rowwise     forward: every row has its own scale, so each rank casts its rows by itself, and all gather
                bytes and scales; backward: columns are scaled, by an amax over all shards, and the
                column-scaled bytes are gathered. Where forward runs again within backward, backward gathers
                both

Half the bytes of bf16 travel (three quarters in the last case), and the values are those of an unsharded
weight, bit for bit.
"""

from __future__ import annotations

import functools
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
    """What all wrappers of one weight share: how it is cast, and what its scales follow from where that is
    known already."""

    def __init__(self, recipe: str) -> None:
        self.set_recipe(recipe)
        self.activation_checkpointing = False
        self.mesh: Any = None  # of the last all-gather; precompute_float8_scales() asks for it
        self.outer_rows = 0
        self.known: Known | None = None

    def set_recipe(self, recipe: str) -> None:
        self.recipe = recipe
        self.tensorwise = recipes.family(recipe) == "tensorwise"
        self.rounding = "none" if self.tensorwise else "power_of_two"

    @property
    def forward_in_backward(self) -> bool:
        """Whether backward gathers forward's bytes too; tensorwise bytes serve both passes anyway."""
        return self.activation_checkpointing and not self.tensorwise

    def cast(self, rows: Tensor, granularity: str, amax: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(bytes, flat scales) of this rank's rows, in one pass; scales follow from amax where it is given."""
        data, scale = ops.quantize(
            rows, _format(self.recipe, rows.device), granularity, scale_rounding=self.rounding, amax=amax
        )
        return data.view(torch.uint8), scale.view(-1)

    def amax_count(self, rows: Tensor) -> int:
        """How many amaxes the whole weight's scales follow from: 1 for tensorwise, N + K for rowwise."""
        return 1 if self.tensorwise else self.outer_rows + rows.shape[1]

    def local_amaxes(self, rows: Tensor) -> list[tuple[int, Tensor]]:
        """(place among them, fp32 amaxes) of this rank's rows, in one read; of an empty shard zeros, or none."""
        if self.tensorwise:
            return [(0, ops.amax(rows, ["tensorwise"]))]
        by_row, by_column = ops.amax(rows, ["rowwise", "colwise"]).split(list(rows.shape))
        return [(self.mesh.get_local_rank() * self.padded_rows(), by_row), (self.outer_rows, by_column)]

    def know(self, amax: Tensor, like: Tensor) -> None:
        """Takes the whole weight's amaxes for the all-gathers to come."""
        if self.tensorwise:
            self.known = Known(amax, None, None)
        else:  # scales of rows that are elsewhere
            by_row, by_column = amax.split([self.outer_rows, len(amax) - self.outer_rows])
            _, row_scale = self.cast(like.new_empty(self.outer_rows, 0), "rowwise", by_row)
            self.known = Known(by_column, by_row, row_scale)

    def whole_amax(self, rows: Tensor) -> Tensor:
        """The amax of the whole weight (tensorwise), or of its columns."""
        if self.known is not None:
            return self.known.amax
        return maximise(ops.amax(rows, ["tensorwise" if self.tensorwise else "colwise"]), self.mesh)

    def by_row(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(bytes of this rank's rows, scales of all rows): a row's scale needs no other rank's values."""
        padded = self.padded_rows()
        if self.known is not None:
            # By the amaxes that the scales follow from: found anew they are others where the weight is.
            first = self.mesh.get_local_rank() * padded
            data, _ = self.cast(rows, "rowwise", self.known.by_row[first : first + len(rows)])
            return data, self.known.row_scale
        data, scale = self.cast(rows, "rowwise")
        gathered = scale.new_empty(self.mesh.size() * padded)
        if len(scale) < padded:
            scale = torch.cat([scale, scale.new_zeros(padded - len(scale))])
        dist.all_gather_into_tensor(gathered, scale, group=self.mesh.get_group())
        return data, gathered[: self.outer_rows]

    def padded_rows(self) -> int:
        """Rows of each rank's padded shard; the last ranks may have fewer, or none."""
        return -(-self.outer_rows // self.mesh.size())


class Known(NamedTuple):
    """What precompute_float8_scales() has found: of the whole weight or of its columns, and of all rows."""

    amax: Tensor
    by_row: Tensor | None
    row_scale: Tensor | None


@functools.cache
def _format(recipe: str, device: torch.device) -> str:
    facts = dict(line.split("=", 1) for line in ops.describe_device(device))
    fnuz = "flavour=fnuz" in recipe or (facts["flavour"] == "fnuz" and "flavour=ocp" not in recipe)
    return "e4m3fnuz" if fnuz else "e4m3fn"


def maximise(amax: Tensor, mesh: Any) -> Tensor:
    """The maximum over ranks, in one reduction, in place. As integers, whose order is that of magnitudes and
    in which NaN is the largest: a maximum of floats may drop it."""
    dist.all_reduce(amax.view(torch.int32), dist.ReduceOp.MAX, mesh.get_group())
    return amax


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

    def refuses(self, recipe: str) -> str:
        """What keeps the weight from being gathered for another recipe; an empty string where nothing does."""
        was, family = self._casts.recipe, recipes.family(recipe)
        if recipe == was:
            return ""
        if family not in ("tensorwise", "rowwise"):
            return (
                f"expected a recipe whose weights FSDP2 can gather in FP8, tensorwise or rowwise, got {recipe}: "
                f"float8_all_gather was called for {was}; convert before it, and leave that call out"
            )
        if self._casts.mesh is not None:
            return (
                f"expected the recipe {was}, for which FSDP2 has gathered this weight in FP8, got {recipe}; build "
                "the model anew, and convert before fully_shard"
            )
        return ""

    def set_recipe(self, recipe: str) -> None:
        """Casts for another recipe from here on: one it does not refuse."""
        self._casts.set_recipe(recipe)

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        casts, rows = self._casts, self._tensor
        casts.mesh, casts.outer_rows = mesh, outer_size[0]
        if casts.tensorwise:
            data, scale = casts.cast(rows, "tensorwise", casts.whole_amax(rows))
            return (self._padded(data),), _Gathering(outer_size, scale, scale, None)

        in_backward = torch._C._current_graph_task_id() != -1
        row_data = row_scale = column_data = column_scale = None
        if not in_backward or casts.forward_in_backward:
            row_data, row_scale = casts.by_row(rows)
        if in_backward:
            column_data, column_scale = casts.cast(rows, "colwise", casts.whole_amax(rows))
        if row_data is None:
            return (self._padded(column_data),), _Gathering(outer_size, None, column_scale, None)
        if column_data is None:
            return (self._padded(row_data),), _Gathering(outer_size, row_scale, None, None)
        # FSDP2's own gathering has one size in all passes, so the second kind of bytes takes one beside it.
        # FSDP2 waits for its own, which comes after.
        column_data = self._padded(column_data)
        gathered = column_data.new_empty(mesh.size() * column_data.shape[0], column_data.shape[1])
        dist.all_gather_into_tensor(gathered, column_data, group=mesh.get_group())
        return (self._padded(row_data),), _Gathering(outer_size, row_scale, column_scale, gathered)

    def _padded(self, data: Tensor) -> Tensor:
        """FSDP2 gathers shards of one size."""
        missing = self._casts.padded_rows() - data.shape[0]
        return torch.cat([data, data.new_zeros(missing, data.shape[1])]) if missing else data

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


def know_amaxes(shards: list[ShardedWeight]) -> None:
    """Finds the amaxes of weights that are sharded over one mesh, in one reduction, for their all-gathers."""
    counts = [shard._casts.amax_count(shard._tensor) for shard in shards]
    whole = shards[0]._tensor.new_zeros(sum(counts), dtype=torch.float32)
    parts = whole.split(counts)
    places, values = [], []
    for shard, part in zip(shards, parts):
        for start, amaxes in shard._casts.local_amaxes(shard._tensor):
            if len(amaxes):
                places.append(part[start : start + len(amaxes)])
                values.append(amaxes)
    torch._foreach_copy_(places, values)
    maximise(whole, shards[0]._casts.mesh)
    for shard, part in zip(shards, parts):
        shard._casts.know(part, shard._tensor)
