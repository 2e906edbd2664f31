"""Converters of torchtitan 0.2: classes with convert(model) and post_optimizer_hook(model)."""

from dataclasses import dataclass, field

from torch import nn
from torchtitan.protocols.model_converter import register_model_converter

from octavo import recipes
from octavo.convert import convert_to_float8_training
from octavo.distributed import float8_all_gather, precompute_float8_scales
from octavo.experts import convert_moe_training
from octavo.linear import Float8Linear
from octavo.names import NameFilter, plain_name
from octavo.torchtitan.rules import log, split_filters, wanted, warn_unmatched


@dataclass
class Octavo:
    recipe: str = ""
    """A recipe of python -m octavo info; empty: what the converter's own section says"""


@dataclass
class JobConfig:
    """What --job.custom_config_module=octavo.torchtitan adds to torchtitan's configuration."""

    octavo: Octavo = field(default_factory=Octavo)


class _Converter:
    """The part that all four share: the recipe and its section."""

    def __init__(self, job_config, parallel_dims):
        chosen = getattr(getattr(job_config, "octavo", None), "recipe", "")
        self.section = self.section_of(job_config.quantize)
        self.recipe = recipes.canonical(chosen or self.recipe_of(self.section))

    def post_optimizer_hook(self, model):
        pass


class LinearConverter(_Converter):
    """octavo.linear.float8: dense linears by --quantize.linear.float8.*

    recipe_name (none: tensorwise, as torchtitan), filter_fqns, enable_fsdp_float8_all_gather (tensorwise and
    rowwise; --activation_checkpoint.mode is read for it), precompute_float8_dynamic_scale_for_fsdp. emulate is
    not asked: the device decides.
    """

    def __init__(self, job_config, parallel_dims):
        super().__init__(job_config, parallel_dims)
        self.all_gather = (
            getattr(self.section, "enable_fsdp_float8_all_gather", False) and parallel_dims.dp_shard_enabled
        )
        self.precompute = self.all_gather and self.section.precompute_float8_dynamic_scale_for_fsdp
        mode = getattr(getattr(job_config, "activation_checkpoint", None), "mode", "none")
        self.forward_in_backward = mode != "none"
        self.filter_fqns, self.auto_filter = split_filters(self.section.filter_fqns)

    @staticmethod
    def section_of(quantize):
        return quantize.linear.float8

    @staticmethod
    def recipe_of(section):
        return section.recipe_name or "tensorwise"

    def convert(self, model: nn.Module) -> None:
        names = NameFilter("filter_fqns", self.filter_fqns)
        for fqn, module in model.named_modules():
            names.match(plain_name(fqn)) if isinstance(module, nn.Linear) else None
        warn_unmatched(names)
        convert_to_float8_training(
            model, recipe=self.recipe, filter_fqns=self.filter_fqns, allow_unmatched=True,
            module_filter_fn=lambda m, fqn: wanted(m.in_features, m.out_features, self.auto_filter),
        )
        if self.all_gather:
            float8_all_gather(model, activation_checkpointing=self.forward_in_backward)
        count = sum(isinstance(m, Float8Linear) for m in model.modules())
        log.info("octavo: %d linears in FP8, recipe %s, FP8 all-gather %s", count, self.recipe, self.all_gather)

    def post_optimizer_hook(self, model) -> None:
        if self.precompute:
            for part in model if isinstance(model, list) else [model]:
                precompute_float8_scales(part)


class MXLinearConverter(LinearConverter):
    """octavo.linear.mx: dense linears by --quantize.linear.mx.* (recipe_name mxfp8_cublas, filter_fqns
    output unless they say otherwise)."""

    @staticmethod
    def section_of(quantize):
        return quantize.linear.mx

    @staticmethod
    def recipe_of(section):
        return section.recipe_name


class ExpertsConverter(_Converter):
    """octavo.grouped_mm.float8: experts by --quantize.grouped_mm.float8.fqns, rowwise. Token groups of any
    size; torchtitan's alignment is left as it is."""

    @staticmethod
    def section_of(quantize):
        return quantize.grouped_mm.float8

    @staticmethod
    def recipe_of(section):
        return "rowwise"

    def convert(self, model: nn.Module) -> None:
        fqns = self.section.fqns
        fqns = fqns.split(",") if isinstance(fqns, str) else list(fqns)
        convert_moe_training(model, recipe=self.recipe, target_fqns=fqns or ["experts"], allow_unmatched=True)
        log.info("octavo: experts in FP8, recipe %s", self.recipe)


class MXExpertsConverter(ExpertsConverter):
    """octavo.grouped_mm.mx: experts by --quantize.grouped_mm.mx.*"""

    @staticmethod
    def section_of(quantize):
        return quantize.grouped_mm.mx

    @staticmethod
    def recipe_of(section):
        return section.recipe_name


CONVERTERS = {
    "octavo.linear.float8": LinearConverter,
    "octavo.linear.mx": MXLinearConverter,
    "octavo.grouped_mm.float8": ExpertsConverter,
    "octavo.grouped_mm.mx": MXExpertsConverter,
}
for _name, _class in CONVERTERS.items():
    register_model_converter(_class, _name)
