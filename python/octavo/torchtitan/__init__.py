"""torchtitan in FP8 through Octavo.

torchtitan 0.2 (torch 2.11): converters by name, switched on from the command line:

    --job.custom_config_module=octavo.torchtitan
    --model.converters=octavo.linear.float8            dense linears
    --model.converters=octavo.linear.float8,octavo.grouped_mm.float8     and experts

They read torchtitan's own sections (quantize.linear.float8 and so on), and --octavo.recipe where a recipe
is wanted that torchtitan has no word for. torchtitan 0.3 converts configurations instead of models; there
the same names are Float8LinearConverter and Float8GroupedExpertsConverter, for a model's `converters`.
"""

import importlib.util

if importlib.util.find_spec("torchtitan") is None:
    raise ImportError("octavo.torchtitan: expected torchtitan, got none; pip install torchtitan==0.2.2")

if importlib.util.find_spec("torchtitan.protocols.model_converter") is not None:
    from octavo.torchtitan.model_converters import (  # noqa: F401
        CONVERTERS,
        ExpertsConverter,
        JobConfig,
        LinearConverter,
        MXExpertsConverter,
        MXLinearConverter,
    )
else:
    from octavo.torchtitan.config_converters import (  # noqa: F401
        Float8GroupedExpertsConverter,
        Float8LinearConverter,
    )
