"""Checks of arguments that several functions take."""

from __future__ import annotations

from torch import nn


def check_module(function: str, module: object, argument: str = "module") -> None:
    """Raises TypeError unless `module` is a torch.nn.Module itself, not its class."""
    if isinstance(module, nn.Module):
        return
    if isinstance(module, type):
        got, repair = f"the class {module.__name__}", f"pass an instance of it: {module.__name__}(...)"
    else:
        got, repair = type(module).__name__, "pass the model"
    raise TypeError(f"{function}: {argument}: expected a torch.nn.Module, got {got}; {repair}")


def check_callable(function: str, argument: str, value: object, signature: str) -> None:
    """Raises TypeError unless `value` can be called, or is None."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{function}: {argument}: expected a function {signature}, got {type(value).__name__}; leave it out to "
            "ask nobody"
        )
