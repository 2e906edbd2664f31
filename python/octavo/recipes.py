"""Recipes by name: the library reads and lists them, Python keeps no table of its own."""

from __future__ import annotations

from typing import Any

from octavo._library import ops

DEFAULT = "rowwise"


def canonical(recipe: Any) -> str:
    """The canonical string of a recipe: "mxfp8(mx_rounding=floor)" of "mxfp8_cublas".

    recipe: a name, an alias of torchao's or torchtitan's, fields in brackets, or an enum whose value is
    one of those (torchao's Float8LinearRecipeName). Errors: ValueError in the library's words, which name
    the known recipes and the nearest.
    """
    text = getattr(recipe, "value", recipe)
    if not isinstance(text, str):
        raise TypeError(
            f"recipe: expected a name such as 'rowwise', got {type(recipe).__name__}; "
            "a configuration goes into config="
        )
    try:
        return ops.canonical_recipe(text)
    except RuntimeError as error:
        raise ValueError(str(error).split("\n")[0]) from None


def family(recipe: str) -> str:
    """The name of a recipe without its fields: "mxfp8" of "mxfp8(mx_rounding=floor)"."""
    return canonical(recipe).split("(")[0]


def names() -> list[str]:
    """tensorwise, rowwise, rowwise_with_gw_hp, blockwise, mxfp8."""
    return list(ops.recipe_names())


def aliases() -> dict[str, str]:
    """Alias -> canonical string of every name torchao or torchtitan has for a recipe."""
    return dict(pair.split("=", 1) for pair in ops.recipe_aliases())
