"""FP8 through PyTorch's own distributed engine: FSDP2 with FP8 all-gather, tensor-parallel plans.

DDP and fully_shard need nothing of this: they gather and reduce a converted model as any other.
"""

from octavo.distributed.weights import float8_all_gather, precompute_float8_scales

__all__ = ["float8_all_gather", "precompute_float8_scales"]
