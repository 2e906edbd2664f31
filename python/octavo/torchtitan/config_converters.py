"""Converters of torchtitan 0.3, which replaces parts of a model's configuration before the model is built.

    from octavo.torchtitan import Float8LinearConverter
    model_spec = model_registry("debugmodel", converters=[Float8LinearConverter.Config(recipe_name="rowwise")])
"""

from dataclasses import dataclass, field, fields

from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.protocols.model import ModelConfigConverter

from octavo import linear, recipes
from octavo.experts import converted_class, experts_recipe, let_dynamo_see_grouped_mm
from octavo.names import NameFilter
from octavo.torchtitan.rules import log, split_filters, wanted, warn_unmatched


class Float8Linear(linear.Float8Linear, Linear):
    """octavo.Float8Linear that torchtitan builds from a configuration."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        recipe: str = recipes.DEFAULT

    def __init__(self, config: Config):
        Linear.__init__(self, config)
        self._configure(config.recipe, "auto")


def _replace(root, parent, attribute, new):
    """Puts `new` where it belongs, and returns the root of the configuration."""
    if parent is None:
        return new
    if isinstance(parent, list):
        parent[attribute] = new
    else:
        setattr(parent, attribute, new)
    return root


class Float8LinearConverter(ModelConfigConverter):
    """Dense linears in FP8: every Linear.Config becomes one that builds a Float8Linear."""

    @dataclass(kw_only=True, slots=True)
    class Config(ModelConfigConverter.Config):
        recipe_name: str = recipes.DEFAULT
        filter_fqns: list = field(default_factory=list)
        model_compile_enabled: bool = False  # torchtitan sets it; both ways are served

    def __init__(self, config: Config):
        self.recipe = recipes.canonical(config.recipe_name)
        self.filter_fqns, self.auto_filter = split_filters(config.filter_fqns)

    def convert(self, model_config):
        names, count = NameFilter("filter_fqns", self.filter_fqns), 0
        for fqn, config, parent, attribute in list(model_config.traverse(Linear.Config)):
            left = names.match(fqn)
            if left or type(config) is not Linear.Config:
                continue  # a subclass has a forward of its own
            if not wanted(config.in_features, config.out_features, self.auto_filter):
                continue
            same = {f.name: getattr(config, f.name) for f in fields(config)}
            new = Float8Linear.Config(**same, recipe=self.recipe)
            model_config = _replace(model_config, parent, attribute, new)
            count += 1
        warn_unmatched(names)
        log.info("octavo: %d linears in FP8, recipe %s", count, self.recipe)
        return model_config


class Float8GroupedExpertsConverter(ModelConfigConverter):
    """Experts in FP8. No padding of token groups: the dispatcher stays as it is."""

    @dataclass(kw_only=True, slots=True)
    class Config(ModelConfigConverter.Config):
        recipe_name: str = recipes.DEFAULT
        model_compile_enabled: bool = False

    def __init__(self, config: Config):
        self.recipe = experts_recipe(config.recipe_name)
        let_dynamo_see_grouped_mm()

    def convert(self, model_config):
        for _, config, parent, attribute in list(model_config.traverse(GroupedExperts.Config)):
            same = {f.name: getattr(config, f.name) for f in fields(config)}
            new = _experts_class(type(config)._owner, self.recipe).Config(**same)
            model_config = _replace(model_config, parent, attribute, new)
        log.info("octavo: experts in FP8, recipe %s", self.recipe)
        return model_config


def _experts_class(base: type, recipe_: str) -> type:
    class Float8GroupedExperts(converted_class(base)):
        recipe = recipe_

        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):
            pass

        def __init__(self, config):
            super().__init__(config)
            self.recipe, self.high_precision = recipe_, False

    return Float8GroupedExperts
