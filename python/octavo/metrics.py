"""metrics.jsonl: what `octavo train` writes and `python -m octavo report` draws, for loops in Python.

    with MetricsLog("runs/mine", recipe="rowwise") as log:
        for step in range(1, steps + 1):
            ...
            log.train(step, loss.item(), tokens=batch * sequence)
        log.validation(steps, validation_loss)
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path


def _number(value):
    """As JSON has it: what is not finite is null, as in the C++ trainer's lines."""
    value = float(value)
    return value if math.isfinite(value) else None


class MetricsLog:
    """Appends lines to RUN_DIR/metrics.jsonl, each flushed: what is written survives the process.

    recipe: "high_precision" (the run that the others are measured against) or an FP8 recipe.
    config: anything JSON takes; the report shows some of its keys (dim, layers, batch, ...).
    resume: goes on with the file that is there instead of beginning anew.
    """

    def __init__(self, run_dir, *, recipe: str = "high_precision", flavour: str = "ocp",
                 config: Mapping | None = None, resume: bool = False, step: int = 0):
        folder = Path(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / "metrics.jsonl", "a" if resume else "w", encoding="utf-8")
        self._last = time.perf_counter()
        flavour = "none" if recipe == "high_precision" else flavour
        self._write("resume" if resume else "start", step, recipe=recipe, flavour=flavour,
                    config=dict(config or {}))

    def train(self, step: int, loss: float, *, tokens: int | None = None,
              seconds: float | None = None, lr: float | None = None,
              gradient_norm: float | None = None, memory: int | None = None) -> None:
        """One step done. tokens: in it; seconds: it took, otherwise since the last line; memory:
        bytes in use, otherwise torch's on a GPU or the process's."""
        now = time.perf_counter()
        seconds = now - self._last if seconds is None else seconds
        self._last = now
        more = {"seconds": _number(seconds), "memory": _memory() if memory is None else int(memory)}
        if tokens is not None and seconds > 0:
            more["tokens_per_second"] = tokens / seconds
        if lr is not None:
            more["lr"] = _number(lr)
        if gradient_norm is not None:
            more["gradient_norm"] = _number(gradient_norm)
        self._write("train", step, loss=_number(loss), **more)

    def validation(self, step: int, loss: float) -> None:
        """Nats per token of held-out data after that step."""
        self._write("validation", step, loss=_number(loss))
        self._last = time.perf_counter()

    def fp8(self, step: int, layers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        """FP8 health: layers[layer][operand] with operand x, w or dy and the keys saturated and
        flushed (shares of its elements) and snr_db."""
        clean = {
            layer: {operand: {key: _number(value) for key, value in figures.items()}
                    for operand, figures in operands.items()}
            for layer, operands in layers.items()
        }
        self._write("fp8", step, layers=clean)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _write(self, event: str, step: int, **more) -> None:
        self._file.write(json.dumps({"event": event, "step": int(step), **more}, allow_nan=False) + "\n")
        self._file.flush()


def _memory() -> int:
    """Bytes in use: of the GPU's tensors where torch uses one, otherwise of the process."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.memory_allocated()
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
