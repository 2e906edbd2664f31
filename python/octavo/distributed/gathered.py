"""A weight that FSDP2 has gathered as FP8 bytes, and the products over it.

Letters: N out features, K in features. `valid` says which scales and bytes are those of this gathering: a
number on the CPU, so that asking costs no GPU synchronisation, and a tensor, so that the operators of a
compiled graph ask too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo._library import ops

aten = torch.ops.aten

ROWS, COLUMNS = 1, 2


class GatheredWeight(torch.Tensor):
    """A gathered weight (N, K): its bytes scaled by rows and by columns, and both scales.

    A rowwise weight's forward has the bytes scaled by rows and its backward those scaled by columns, in the
    same memory; where forward runs again within backward, column_bytes are memory of their own and
    backward has both. A tensorwise weight's bytes serve both passes. Scales that are not of this gathering
    are NaN and `valid` leaves them out, so that a product over the wrong ones is an error.
    """

    @staticmethod
    def __new__(
        cls, row_bytes: Tensor, row_scale: Tensor, column_bytes: Tensor | None, column_scale: Tensor,
        valid: Tensor, dtype: torch.dtype,
    ) -> GatheredWeight:
        self = torch.Tensor._make_wrapper_subclass(cls, row_bytes.size(), dtype=dtype, device=row_bytes.device)
        self._row_bytes, self._row_scale = row_bytes, row_scale
        self._own_column_bytes, self._column_scale = column_bytes, column_scale
        self._valid = valid
        return self

    @property
    def _column_bytes(self) -> Tensor:
        return self._row_bytes if self._own_column_bytes is None else self._own_column_bytes

    @staticmethod
    def of(rows: Tensor, scales: tuple[int, int], own_column_bytes: bool, dtype: torch.dtype) -> GatheredWeight:
        """Over the gathered bytes (N, K), with room for `scales` (by rows, by columns) and, where wanted,
        for bytes scaled by columns."""
        def room(n):
            return rows.new_empty(n, dtype=torch.float32)

        return GatheredWeight(
            rows, room(scales[0]), torch.empty_like(rows) if own_column_bytes else None, room(scales[1]),
            torch.zeros((), dtype=torch.int64), dtype,
        )

    def fill(self, row_scale: Tensor | None, column_scale: Tensor | None, column_bytes: Tensor | None) -> None:
        """Takes what a gathering brought. `.data`: autograd has saved these tensors, and the new values are
        what it is to find in them."""
        for mine, scale in ((self._row_scale, row_scale), (self._column_scale, column_scale)):
            mine.data.fill_(float("nan")) if scale is None else mine.data.copy_(scale)
        if column_bytes is not None:
            self._own_column_bytes.data.copy_(column_bytes)
        self._valid.data.fill_(ROWS * (row_scale is not None) + COLUMNS * (column_scale is not None))

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
        return self.__tensor_unflatten__(self.__dict__, self.__tensor_flatten__()[1], None, None)

    def stand_in(self) -> Tensor:
        """A tensor of the weight's size and dtype that nobody reads."""
        return self._row_scale.new_empty(1, dtype=self.dtype).expand(self.shape)

    def __tensor_flatten__(self):
        own = self._own_column_bytes is not None
        names = ["_row_bytes", "_row_scale", "_column_scale", "_valid"] + ["_own_column_bytes"] * own
        return names, self.dtype

    @staticmethod
    def __tensor_unflatten__(inner, dtype, outer_size, outer_stride):
        return GatheredWeight(
            inner["_row_bytes"], inner["_row_scale"], inner.get("_own_column_bytes"), inner["_column_scale"],
            inner["_valid"], dtype,
        )

    def __repr__(self):
        return f"GatheredWeight({tuple(self.shape)}, {self.dtype})"


def _forward(func, x, w, bias, recipe, *flags):
    # float8_linear itself is what runs where nothing asks for a gradient; its word for the transposed
    # layout has no meaning then.
    alone = func is ops.float8_linear.default
    need_dx, need_dw = (False, False) if alone else flags[:2]
    quantised_x = () if alone else flags[5:]  # beside the weight's, which is not given here
    result = ops.float8_linear_forward_gathered(
        x, w.stand_in(), bias, recipe, need_dx, need_dw, w._row_bytes, w._row_scale, w._valid, *quantised_x
    )
    return result[0] if alone else result


def _backward(dy, x, x_scale, w, w_scale, recipe, dw_dtype, dbias_dtype=None):
    return ops.float8_linear_backward_gathered(
        dy, x, x_scale, w._column_bytes, w._column_scale, w._valid, recipe, dw_dtype, dbias_dtype
    )


def _check_rows(valid: Tensor) -> None:
    if not valid.item() & ROWS:
        raise RuntimeError(
            "FP8 all-gather: expected forward to have the weight's row-scaled bytes, got backward's: "
            "activation checkpointing runs forward again within backward, which for a rowwise weight is to be "
            "said before fully_shard: float8_all_gather(model, activation_checkpointing=True); or use the "
            "recipe tensorwise"
        )


def _check_columns(valid: Tensor) -> None:
    if not valid.item() & COLUMNS:
        raise RuntimeError(
            "FP8 all-gather: expected backward to gather the weight's column-scaled bytes, got forward's: "
            "rowwise needs fully_shard(..., reshard_after_forward=True) for the module that owns the linear, "
            "the root too (its default is False); or use the recipe tensorwise"
        )


def _run_forward(x, w, bias, recipe, need_dx, need_dw, w_bytes, w_scale, valid, *quantised_x):
    return ops.float8_linear_forward(x, w, bias, recipe, need_dx, need_dw, False, w_bytes, w_scale, *quantised_x)


def _transpose_and_run(dy, x, x_scale, w_bytes, w_scale, valid, recipe, dw_dtype, dbias_dtype=None):
    return ops.float8_linear_backward(
        dy, x, x_scale, ops.transpose_bytes(w_bytes), w_scale, recipe, dw_dtype, dbias_dtype
    )


def _checked(check, position, run):
    def checked_run(*arguments):
        check(arguments[position])
        return run(*arguments)

    return checked_run


# Operators, so that compiled graphs check when they run. Backward's has dy among its arguments: a transposition
# by itself could be moved by torch.compile into the forward graph, where the bytes are forward's.
_library = torch.library.Library("octavo", "FRAGMENT")
_library.define(
    "float8_linear_forward_gathered(Tensor x, Tensor w, Tensor? bias, str recipe, bool need_dx, bool need_dw, "
    "Tensor w_bytes, Tensor w_scale, Tensor valid, Tensor? x_rows=None, Tensor? x_rows_scale=None) -> "
    "(Tensor y, Tensor x_bytes, Tensor x_scale, Tensor w_bytes, Tensor w_scale)"
)
_library.define(
    "float8_linear_backward_gathered(Tensor dy, Tensor? x, Tensor? x_scale, Tensor w_bytes, Tensor w_scale, "
    "Tensor valid, str recipe, ScalarType dw_dtype, ScalarType? dbias_dtype=None) -> (Tensor dx, Tensor dw, "
    "Tensor dbias)"
)
for _name, _check, _position, _run in (
    ("float8_linear_forward_gathered", _check_rows, 8, _run_forward),
    ("float8_linear_backward_gathered", _check_columns, 5, _transpose_and_run),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _checked(_check, _position, _run), _key)
    _library.impl(_name, _run, "Meta")
