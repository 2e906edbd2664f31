"""torchao.float8's public names, over Octavo: "changing one import" is

    from octavo.compat.torchao import convert_to_float8_training, Float8LinearConfig

Defaults are torchao's (tensorwise). Every field of Float8LinearConfig exists; a value that has no meaning
here is a ValueError naming the field. Bytes and scales are torchao's bit for bit (docs/numerics.md names
the differences).
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from octavo import convert as _convert
from octavo._arguments import check_module
from octavo.convert import LinearSettings, ModuleFilter
from octavo.distributed import precompute_float8_scales as precompute_float8_dynamic_scale_for_fsdp

__all__ = [
    "CastConfig",
    "FP8Granularity",
    "Float8GemmConfig",
    "Float8LinearConfig",
    "Float8LinearRecipeName",
    "ScalingGranularity",
    "ScalingType",
    "_auto_filter_for_recipe",
    "convert_to_float8_training",
    "precompute_float8_dynamic_scale_for_fsdp",
]


class ScalingType(enum.Enum):
    """dynamic: scaled from the tensor's own values. disabled: left in high precision."""

    DYNAMIC = "dynamic"
    DISABLED = "disabled"

    def short_str(self) -> str:
        return self.value[:3]


class ScalingGranularity(enum.Enum):
    """tensorwise: one scale. axiswise: one a row, along the product's contraction."""

    TENSORWISE = "tensorwise"
    AXISWISE = "axiswise"

    def short_str(self) -> str:
        return {"tensorwise": "ten", "axiswise": "axs"}[self.value]


class Float8LinearRecipeName(enum.Enum):
    TENSORWISE = "tensorwise"
    ROWWISE = "rowwise"
    ROWWISE_WITH_GW_HP = "rowwise_with_gw_hp"


class FP8Granularity:
    """torchao's type of its inference granularities (PerTensor, PerRow); training does not use it."""


@dataclass(frozen=True)
class CastConfig:
    """How one operand is cast. target_dtype None: e4m3 for input and weight, e5m2 for grad_output."""

    scaling_type: ScalingType = ScalingType.DYNAMIC
    scaling_granularity: ScalingGranularity = ScalingGranularity.TENSORWISE
    target_dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Float8GemmConfig:
    use_fast_accum: bool = False


@dataclass(frozen=True)
class Float8LinearConfig:
    """torchao's configuration of a linear. What it comes to here is a recipe: settings_of_config()."""

    cast_config_input: CastConfig = CastConfig()
    cast_config_input_for_grad_weight: CastConfig | None = None
    cast_config_weight: CastConfig = CastConfig()
    cast_config_weight_for_grad_input: CastConfig | None = None
    cast_config_grad_output: CastConfig = CastConfig()
    cast_config_grad_output_for_grad_weight: CastConfig | None = None
    gemm_config_output: Float8GemmConfig = Float8GemmConfig(use_fast_accum=True)
    gemm_config_grad_input: Float8GemmConfig = Float8GemmConfig()
    gemm_config_grad_weight: Float8GemmConfig = Float8GemmConfig()
    enable_fsdp_float8_all_gather: bool = False
    pad_inner_dim: bool = False
    """Accepted: sizes are always padded inside, to what the product needs."""
    emulate: bool = False
    """Accepted on the CPU, where every product is emulated; an error on a GPU."""
    force_recompute_fp8_weight_in_bwd: bool = False
    """keep_weight_transposed="off"."""
    round_scales_to_power_of_2: bool = False

    def __post_init__(self) -> None:
        for name in ("input_for_grad_weight", "weight_for_grad_input", "grad_output_for_grad_weight"):
            if getattr(self, f"cast_config_{name}") is None:
                whole = getattr(self, f"cast_config_{name.split('_for_')[0]}")
                object.__setattr__(self, f"cast_config_{name}", whole)
        settings_of_config(self)  # a configuration that cannot run is an error here

    @staticmethod
    def from_recipe_name(recipe_name: Float8LinearRecipeName | str) -> Float8LinearConfig:
        """The configuration of tensorwise, rowwise or rowwise_with_gw_hp. Errors: ValueError otherwise."""
        name = Float8LinearRecipeName(recipe_name)
        if name is Float8LinearRecipeName.TENSORWISE:
            return Float8LinearConfig()
        axis = CastConfig(scaling_granularity=ScalingGranularity.AXISWISE)
        gradient = CastConfig(
            scaling_granularity=ScalingGranularity.AXISWISE, target_dtype=torch.float8_e4m3fn
        )
        more: dict[str, Any] = {}
        if name is Float8LinearRecipeName.ROWWISE_WITH_GW_HP:
            disabled = CastConfig(scaling_type=ScalingType.DISABLED)
            more = {
                "cast_config_input_for_grad_weight": disabled,
                "cast_config_weight_for_grad_input": CastConfig(),
                "cast_config_grad_output_for_grad_weight": disabled,
            }
        return Float8LinearConfig(
            cast_config_input=axis, cast_config_weight=axis, cast_config_grad_output=gradient,
            round_scales_to_power_of_2=True, **more,
        )


_DTYPES = {
    torch.float8_e4m3fn: ("e4m3", "ocp"), torch.float8_e5m2: ("e5m2", "ocp"),
    torch.float8_e4m3fnuz: ("e4m3", "fnuz"), torch.float8_e5m2fnuz: ("e5m2", "fnuz"),
}  # fmt: skip


def _refuse(field: str, expected: str, got: object) -> ValueError:
    return ValueError(f"Float8LinearConfig.{field}: expected {expected}, got {got}; use a recipe of "
                      "octavo.recipes.names(), or leave the field out")


def settings_of_config(config: Any) -> LinearSettings:
    """The recipe a Float8LinearConfig (this module's or torchao's) stands for, by its fields:

    all tensorwise, e4m3, e4m3, e5m2, scales not rounded           tensorwise
    all axiswise, e4m3, scales rounded to powers of two            rowwise
    the same, weight_for_grad_input tensorwise, grad_weight off    rowwise_with_gw_hp
    grad_weight's two casts disabled                               gw_high_precision=true
    use_fast_accum: output alone, all three, none                  fast_accumulation

    Errors: ValueError naming the field that makes it something else.
    """
    known = {field.name for field in fields(Float8LinearConfig)}
    missing = [name for name in sorted(known) if not hasattr(config, name)]
    if missing:
        raise ValueError(f"config: expected a Float8LinearConfig, got {type(config).__name__} without "
                         f"{', '.join(missing)}; pass octavo.compat.torchao.Float8LinearConfig")

    def cast(name: str) -> tuple[str, str, str, str]:
        """scaling type, granularity, element, flavour; torchao's enums have these values too."""
        c = getattr(config, f"cast_config_{name}")
        default = torch.float8_e5m2 if name.startswith("grad_output") else torch.float8_e4m3fn
        dtype = c.target_dtype or default
        if dtype not in _DTYPES:
            raise _refuse(f"cast_config_{name}.target_dtype", "an FP8 dtype", dtype)
        flavour = _DTYPES[dtype][1] if c.target_dtype else "auto"
        return c.scaling_type.value, c.scaling_granularity.value, _DTYPES[dtype][0], flavour

    for name in ("input", "weight", "grad_output", "weight_for_grad_input"):
        if cast(name)[0] != "dynamic":
            raise _refuse(f"cast_config_{name}.scaling_type", "dynamic (a linear left in high precision "
                          "is one that module_filter_fn leaves out)", cast(name)[0])
    off = {cast("input_for_grad_weight")[0], cast("grad_output_for_grad_weight")[0]}
    if len(off) != 1:
        raise _refuse("cast_config_input_for_grad_weight.scaling_type",
                      "the same as cast_config_grad_output_for_grad_weight's", sorted(off))
    gw_high_precision = off == {"disabled"}

    granularity = cast("input")[1]
    recipe = "tensorwise" if granularity == "tensorwise" else "rowwise"
    expected = {name: granularity for name in ("weight", "grad_output", "weight_for_grad_input")}
    if not gw_high_precision:
        expected |= {"input_for_grad_weight": granularity, "grad_output_for_grad_weight": granularity}
    elif recipe == "rowwise" and cast("weight_for_grad_input")[1] == "tensorwise":
        recipe, gw_high_precision = "rowwise_with_gw_hp", False
        expected["weight_for_grad_input"] = "tensorwise"
    for name, want in expected.items():
        if cast(name)[1] != want:
            raise _refuse(f"cast_config_{name}.scaling_granularity", want, cast(name)[1])
    for name in ("input", "weight", "grad_output"):
        want = "e5m2" if recipe == "tensorwise" and name == "grad_output" else "e4m3"
        if cast(name)[2] != want:
            raise _refuse(f"cast_config_{name}.target_dtype", f"{want} in a {recipe} configuration",
                          cast(name)[2])
    if bool(config.round_scales_to_power_of_2) != (recipe != "tensorwise"):
        raise _refuse("round_scales_to_power_of_2", f"{recipe != 'tensorwise'} in a {recipe} configuration",
                      config.round_scales_to_power_of_2)

    options = []
    if torch.float8_e4m3fnuz in (config.cast_config_input.target_dtype,
                                 config.cast_config_weight.target_dtype):
        options.append("flavour=fnuz")
    fast = tuple(bool(getattr(config, f"gemm_config_{name}").use_fast_accum)
                 for name in ("output", "grad_input", "grad_weight"))
    words = {(True, False, False): None, (True, True, True): "all", (False, False, False): "none"}
    if fast not in words:
        raise _refuse("gemm_config_*.use_fast_accum", "output alone, all three, or none of the products",
                      dict(zip(("output", "grad_input", "grad_weight"), fast)))
    if words[fast]:
        options.append(f"fast_accumulation={words[fast]}")
    if gw_high_precision:
        options.append("gw_high_precision=true")
    if config.enable_fsdp_float8_all_gather and recipe == "rowwise_with_gw_hp":
        raise _refuse("enable_fsdp_float8_all_gather", "False in a rowwise_with_gw_hp configuration "
                      "(tensorwise and rowwise gather FP8)", True)
    return LinearSettings(
        recipe=recipe + (f"({','.join(options)})" if options else ""),
        keep_weight_transposed="off" if config.force_recompute_fp8_weight_in_bwd else "auto",
        fsdp_all_gather=bool(config.enable_fsdp_float8_all_gather),
        emulate=bool(config.emulate),
    )


def convert_to_float8_training(
    module: nn.Module,
    *,
    module_filter_fn: ModuleFilter | None = None,
    config: Float8LinearConfig | None = None,
) -> nn.Module:
    """torchao's function: as octavo.convert_to_float8_training, but tensorwise where nothing is said, and
    a module in which there is nothing to convert is returned as it is."""
    check_module("convert_to_float8_training", module)
    if not any(
        isinstance(child, nn.Linear) and (module_filter_fn is None or module_filter_fn(child, fqn))
        for fqn, child in module.named_modules()
    ):
        return module
    return _convert.convert_to_float8_training(
        module, module_filter_fn=module_filter_fn, config=config or Float8LinearConfig()
    )


def _auto_filter_for_recipe(
    recipe: Float8LinearRecipeName | str, filter_fqns: list[str]
) -> Callable[[nn.Module, str], bool]:
    """torchao's filter: linears whose sizes are multiples of 16 and above torchao's thresholds (its
    measurements on an H100), and whose name contains no entry of filter_fqns.
    Errors: NotImplementedError for rowwise_with_gw_hp, as torchao."""
    name = Float8LinearRecipeName(recipe)
    if name is Float8LinearRecipeName.ROWWISE_WITH_GW_HP:
        raise NotImplementedError(f"Unsupported recipe: {name}")
    return functools.partial(_above_thresholds, recipe=name, filter_fqns=filter_fqns)


def _above_thresholds(
    mod: nn.Module, fqn: str, *, recipe: Float8LinearRecipeName, filter_fqns: list[str]
) -> bool:
    if not isinstance(mod, nn.Linear) or any(entry in fqn for entry in filter_fqns):
        return False
    n, k = mod.weight.shape
    if n % 16 or k % 16:
        return False
    if recipe is Float8LinearRecipeName.TENSORWISE:
        return not (k <= 4096 and n <= 1024)
    return not (n <= 2048 or k <= 1024 or (n <= 4096 and k <= 2048))
