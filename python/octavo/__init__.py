"""Octavo: FP8 training in PyTorch, in two lines.

    import octavo
    model = octavo.convert_to_float8_training(model)          # dense linears; recipe="rowwise"
    model = octavo.convert_moe_training(model)                # experts' 3-D weights

torch.compile, FSDP2, DDP, autocast, activation checkpointing and state dicts work as before. Whoever has
torchao code changes one import: octavo.compat.torchao has torchao.float8's names and defaults.
"""

from octavo import _library, flops  # flops: registers what torch's counter counts
from octavo.cache import WeightCache
from octavo.convert import convert_to_float8_training
from octavo.experts import convert_moe_training, grouped_linear
from octavo.fused import RMSNormLinear, SwiGLUMLP
from octavo.linear import Float8Linear, high_precision
from octavo.quantized import ScaledTensor, quantize, scaled_mm

__version__ = _library.BUILD_INFO.get("version", "0+unknown")

__all__ = [
    "Float8Linear",
    "RMSNormLinear",
    "ScaledTensor",
    "SwiGLUMLP",
    "WeightCache",
    "convert_moe_training",
    "convert_to_float8_training",
    "grouped_linear",
    "high_precision",
    "quantize",
    "scaled_mm",
]
