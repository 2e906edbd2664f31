"""WeightCache: every weight quantised once for several forward passes."""

from __future__ import annotations

from torch import nn

from octavo._arguments import check_module
from octavo._library import ops
from octavo.linear import Float8Linear


class WeightCache:
    """A scope in which each Float8Linear's weight is quantised once, both layouts (2 N K bytes each).

        with octavo.WeightCache(model) as cache:
            for micro_batch in step:
                loss(model(micro_batch)).backward()
            optimizer.step()
            cache.refresh()

    The bits are those without it as long as no weight changes; nobody checks that, so call refresh() after
    every optimiser step and every load within the scope. Gradients go to the weights themselves. A compiled
    graph takes the quantised weights as inputs. Parametrised, DTensor and gathered weights are left as they
    are (they are quantised by whoever gathers them). Scopes do not nest: ValueError.
    """

    def __init__(self, model: nn.Module) -> None:
        check_module("WeightCache", model, "model")
        self._linears = [m for m in model.modules() if isinstance(m, Float8Linear)]
        if not self._linears:
            raise ValueError(
                "WeightCache: expected a model with Float8Linear modules, got none; convert it first"
            )

    def refresh(self) -> None:
        """Quantises every weight again."""
        for linear in self._linears:
            weight = linear.weight
            if type(weight) is nn.Parameter and not linear.high_precision:
                linear.quantised_weight = tuple(ops.quantize_weight(weight, linear.recipe))

    def __enter__(self) -> WeightCache:
        if any(linear.quantised_weight for linear in self._linears):
            raise ValueError("WeightCache: expected no open scope, got one; call refresh() on it instead")
        self.refresh()
        return self

    def __exit__(self, *exception: object) -> None:
        for linear in self._linears:
            linear.quantised_weight = ()
