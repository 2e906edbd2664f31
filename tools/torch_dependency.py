"""For pyproject.toml: a wheel depends on the torch release it is built against, and on no other."""

import importlib.metadata


def dynamic_metadata(field, settings=None, project=None):
    if field != "dependencies":
        raise ValueError(f"torch_dependency: expected the field dependencies, got {field}")
    return [f"torch=={importlib.metadata.version('torch').split('+')[0]}"]


def get_requires_for_dynamic_metadata(settings=None):
    return []
