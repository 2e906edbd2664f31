"""Float8Linear under tensor parallelism: torch's own plans, each rank's product in FP8.

    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

A rank quantises its own shards: scales are of a shard, not of the whole tensor, which is at least as
fine. So results differ from one process' by FP8's rounding where a scale spans what is sharded: x's rows
and w's rows in row-wise linears, everything in tensorwise ones. Activations travel in high precision.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from octavo.distributed.weights import local_linear


def parallel_linear(module: nn.Linear, x: Tensor) -> Tensor:
    """y = x . weight^T + bias for a DTensor weight (N, K) on a mesh of one dimension.

    weight Shard(0) (ColwiseParallel): x is replicated, y sharded along N. weight Shard(1)
    (RowwiseParallel): x sharded along K, y partial sums. weight replicated: y as x.
    Errors: ValueError for other placements and for an x that is no DTensor.
    """
    weight, bias = module.weight, module.bias
    mesh = weight.device_mesh
    if not isinstance(x, DTensor):
        raise ValueError(
            f"Float8Linear: expected a DTensor input beside a DTensor weight, got {type(x).__name__}; use "
            "torch's ColwiseParallel or RowwiseParallel, or fully_shard the module that owns it"
        )
    if mesh.ndim != 1:
        raise ValueError(
            f"Float8Linear: expected a weight on a mesh of one dimension, got {mesh.ndim} "
            f"({weight.placements}); FSDP2 over a tensor-parallel weight gathers it before forward"
        )
    (placement,) = weight.placements
    shape = (*x.shape[:-1], weight.shape[0])
    if placement == Shard(0):
        x = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        y = local_linear(module, x, weight.to_local(), bias.to_local() if bias is not None else None)
        return _distributed(y, mesh, Shard(len(shape) - 1), shape)
    if placement == Shard(1):
        x = x.redistribute(placements=[Shard(x.dim() - 1)]).to_local()
        if bias is not None:  # once in the sum over ranks; every rank takes part in its gradient's
            once = 1.0 if mesh.get_local_rank() == 0 else 0.0
            bias = bias.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]) * once
        return _distributed(local_linear(module, x, weight.to_local(), bias), mesh, Partial(), shape)
    if placement == Replicate():
        (where,) = x.placements
        gradient = [Replicate() if where == Replicate() else Partial()]
        x = x.to_local()
        b = bias.to_local(grad_placements=gradient) if bias is not None else None
        y = local_linear(module, x, weight.to_local(grad_placements=gradient), b)
        return _distributed(y, mesh, where, shape)
    raise ValueError(
        f"Float8Linear: expected a weight in Shard(0), Shard(1) or Replicate(), got {placement}; use torch's "
        "ColwiseParallel or RowwiseParallel"
    )


def _distributed(y: Tensor, mesh, placement, shape) -> DTensor:
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(y, mesh, [placement], run_check=False, shape=torch.Size(shape), stride=stride)
