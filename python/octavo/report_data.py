"""Runs as the report draws them: read from metrics.jsonl and summary.json, smoothed and thinned."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

HIGH_PRECISION = "high_precision"
OPERANDS = ("x", "w", "dy")


class ReportError(Exception):
    """What is wrong and what to do about it, in one line."""


@dataclass
class Run:
    name: str
    recipe: str = "unknown"
    flavour: str = "none"
    config: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)
    train: dict[int, dict] = field(default_factory=dict)  # step -> line
    validation: dict[int, float] = field(default_factory=dict)
    fp8: dict[int, dict] = field(default_factory=dict)  # step -> layer -> operand -> figures

    @property
    def family(self) -> str:
        return self.recipe.split("(")[0]

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of a figure of the train lines, where it is a number."""
        return [(step, row[key]) for step, row in sorted(self.train.items()) if is_number(row.get(key))]

    def layers(self) -> list[str]:
        """Every layer with FP8 figures, in the order of the model: JSON's objects have none."""
        return sorted({name for layers in self.fp8.values() for name in layers}, key=model_order)


# Within a block, as the model computes them.
ORDER = ["q_proj", "wq", "k_proj", "wk", "v_proj", "wv", "o_proj", "wo", "gate_up_proj", "gate_proj", "w1",
         "up_proj", "w3", "down_proj", "w2"]


def model_order(layer: str) -> tuple:
    """Blocks by number, attention before the network, heads last."""
    parts = layer.split(".")
    numbers = [int(p) for p in parts if p.isdigit()]
    place = ORDER.index(parts[-1]) if parts[-1] in ORDER else len(ORDER)
    attention = any("attn" in p or "attention" in p for p in parts)
    return (not numbers, numbers, not attention, ".".join(parts[:-1]), place, parts[-1])


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_run(path: Path) -> Run:
    """A run's folder or its metrics.jsonl. A torn last line is left out; after a resume a step's later
    line holds, and steps after the one resumed from are gone."""
    file = path / "metrics.jsonl" if path.is_dir() else path
    run = Run(name=(path if path.is_dir() else path.parent).name or str(path))
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            event, step = row["event"], int(row["step"])
        except (ValueError, KeyError, TypeError):
            if number >= len(lines) - 1:
                continue
            raise ReportError(f"{file}:{number}: no line of metrics; give a run of octavo train") from None
        if event in ("start", "resume"):
            run.recipe = str(row.get("recipe", run.recipe))
            run.flavour = str(row.get("flavour", run.flavour))
            run.config = row.get("config") or run.config
            for table in (run.train, run.validation, run.fp8):
                for later in [s for s in table if s > step]:
                    del table[later]
        elif event == "train":
            run.train[step] = row
        elif event == "validation" and is_number(row.get("loss")):
            run.validation[step] = row["loss"]
        elif event == "fp8" and isinstance(row.get("layers"), dict):
            run.fp8[step] = row["layers"]
    if not run.train:
        raise ReportError(f"{file}: holds no training step; give a run that has done one")
    try:
        summary = json.loads((file.parent / "summary.json").read_text())
        run.summary = summary if isinstance(summary, dict) else {}
    except (OSError, ValueError):
        pass  # a run that still trains has none
    return run


def read_runs(paths: list[str]) -> list[Run]:
    """Runs, and those below the folder of a comparison, the high-precision one first; equal names are
    told apart by their folders."""
    runs: list[tuple[Path, Run]] = []
    for name in paths:
        path = Path(name)
        if (path / "metrics.jsonl").is_file() or path.is_file():
            found = [path]
        elif path.is_dir():
            found = sorted(p.parent for p in path.glob("*/metrics.jsonl"))
        else:
            raise ReportError(f"{path}: no such folder; give runs, or the folder of a comparison")
        if not found:
            raise ReportError(f"{path}: holds no metrics.jsonl; give runs, or the folder of a comparison")
        runs += [(p, read_run(p)) for p in found]
    names = [run.name for _, run in runs]
    for path, run in runs:
        if names.count(run.name) > 1:
            run.name = str(path)
    runs.sort(key=lambda entry: entry[1].recipe != HIGH_PRECISION)  # stable
    return [run for _, run in runs]


def reference_of(runs: list[Run], asked: str | None) -> Run | None:
    """The run that the others' gap is measured against."""
    if asked is not None:
        wanted = str(Path(asked))
        for run in runs:
            if run.name in (asked, wanted, Path(asked).name):
                return run
        raise ReportError(f"--reference: {asked} is none of the runs; name one of "
                          + ", ".join(run.name for run in runs))
    return next((run for run in runs if run.recipe == HIGH_PRECISION), None)


def smoothed(points: list[tuple[int, float]], width: int) -> list[tuple[int, float]]:
    """Exponential mean over about `width` points, without a bias towards the first."""
    keep, mean, weight, out = 1 - 1 / max(width, 1), 0.0, 0.0, []
    for step, value in points:
        mean = keep * mean + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        out.append((step, mean / weight))
    return out


def smoothing_of(runs: list[Run]) -> int:
    """A fiftieth of the longest run."""
    return max(1, max(len(run.train) for run in runs) // 50)


def gap(run: Run, reference: Run, width: int) -> list[tuple[int, float]]:
    """Per cent by which the smoothed loss lies above the reference's, at the steps both have."""
    base = dict(smoothed(reference.series("loss"), width))
    mine = smoothed(run.series("loss"), width)
    return [(step, 100 * (loss / base[step] - 1)) for step, loss in mine if base.get(step)]


def thinned(points: list[tuple[int, float]], limit: int = 800) -> list[tuple[int, float]]:
    """At most about `limit` points: the least and the largest of each stretch, so that peaks stay."""
    if len(points) <= limit:
        return points
    size, out = math.ceil(2 * len(points) / limit), []
    for begin in range(0, len(points), size):
        part = points[begin : begin + size]
        low, high = min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])
        out += sorted({low, high})
    return out


def health_series(run: Run, operand: str, key: str) -> tuple[list, list]:
    """(median over the layers, the worst layer) of one figure over the sampled steps. The worst SNR is
    the lowest, the worst share the largest."""
    median, worst = [], []
    for step, layers in sorted(run.fp8.items()):
        values = sorted(figures[operand][key] for figures in layers.values()
                        if operand in figures and is_number(figures[operand].get(key)))
        if values:
            median.append((step, values[len(values) // 2]))
            worst.append((step, values[0] if key == "snr_db" else values[-1]))
    return median, worst


def worst_layers(run: Run, count: int = 6) -> list[tuple[str, str, dict]]:
    """(layer, operand, figures) of the lowest SNR at the last sampled step."""
    if not run.fp8:
        return []
    last = run.fp8[max(run.fp8)]
    rows = [(layer, operand, figures) for layer, operands in last.items()
            for operand, figures in operands.items() if is_number(figures.get("snr_db"))]
    return sorted(rows, key=lambda row: row[2]["snr_db"])[:count]
