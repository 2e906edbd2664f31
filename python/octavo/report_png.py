"""The report's curves as PNG files, by matplotlib."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.report_charts import RAMP, Series, block_of, robust_range
from octavo.report_data import OPERANDS, ReportError, Run, is_number

# The page's light colours (report_page.css).
COLOURS = {"k0": "#2b2f3a", "k1": "#d17f00", "k2": "#0067b1", "k3": "#2fa3dc", "k4": "#00875f",
           "k5": "#b9559a", "k6": "#c9482b", "k7": "#7a5140", "k8": "#6b7280", "k9": "#8f8a00"}
TITLES = {"loss": ("Training loss", "nats per token"), "gap": ("Gap to {}", "%"),
          "throughput": ("Throughput", "tokens/s"), "memory": ("Memory in use", "MiB"),
          "gradient_norm": ("Gradient norm", "norm before clipping"),
          "validation": ("Validation loss", "nats per token")}


def _pyplot():
    try:
        import matplotlib
    except ImportError:
        raise ReportError("PNGs need matplotlib: pip install matplotlib, or give --no-png") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    return pyplot


def draw_pngs(folder: Path, runs: list[Run], charts: dict[str, list[Series]], reference: Run | None) -> list[Path]:
    """loss.png, gap.png, ... and fp8-RUN.png of each run that has FP8 figures."""
    pyplot = _pyplot()
    written = []
    for name, series in charts.items():
        series = [s for s in series if s.points]
        if not series:
            continue
        title, unit = TITLES[name]
        figure, axes = pyplot.subplots(figsize=(8, 4.2), dpi=130, layout="constrained")
        for s in sorted(series, key=lambda s: not s.faint):
            xs, ys = zip(*s.points)
            axes.plot(xs, ys, color=COLOURS[s.colour], linestyle="--" if s.dashed else "-",
                      marker="o" if len(xs) == 1 else None, linewidth=0.8 if s.faint else 1.6,
                      alpha=0.3 if s.faint else 1, label=None if s.faint else s.label)
        if name in ("throughput", "memory"):
            axes.set_ylim(0)
        else:
            axes.set_ylim(*robust_range(series))
        if name == "gap":
            axes.axhline(0, color="#9aa3b5", linewidth=1)
        axes.set(xlabel="step", ylabel=unit)
        axes.set_title(title.format(reference.name if reference else ""), loc="left", fontweight="bold")
        axes.grid(color="#e6e9f0")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, ncols=2)
        written.append(_save(pyplot, figure, folder / f"{name}.png"))
    for run in runs:
        if run.fp8:
            written.append(_draw_health(pyplot, folder, run))
    return written


def _draw_health(pyplot, folder: Path, run: Run) -> Path:
    """A heat map of the signal to noise for each operand: layers down, steps along."""
    from matplotlib.colors import LinearSegmentedColormap

    layers, steps = run.layers(), sorted(run.fp8)
    colours = LinearSegmentedColormap.from_list("octavo", [[v / 255 for v in c] for c in RAMP])
    grids = []
    for operand in OPERANDS:
        figures = [[run.fp8[s].get(layer, {}).get(operand, {}).get("snr_db") for s in steps] for layer in layers]
        grids.append([[v if is_number(v) else float("nan") for v in row] for row in figures])
    seen = sorted(v for grid in grids for row in grid for v in row if v == v) or [0.0, 1.0]
    height = min(12, max(3.2, 0.16 * len(layers) + 1.4))
    figure, axes = pyplot.subplots(1, 3, figsize=(11, height), dpi=130, sharey=True, layout="constrained")
    for axis, operand, grid in zip(axes, OPERANDS, grids):
        image = axis.imshow(grid, aspect="auto", cmap=colours, vmin=seen[len(seen) // 100],
                            vmax=seen[-1 - len(seen) // 100], interpolation="nearest")
        shown = sorted({0, len(steps) // 2, len(steps) - 1})
        axis.set_xticks(shown, [f"{steps[i]:,}" for i in shown])
        axis.set_title(operand, loc="left", fontweight="bold")
        axis.set_xlabel("step")
    first_of_block = [i for i, name in enumerate(layers) if i == 0 or block_of(name) != block_of(layers[i - 1])]
    axes[0].set_yticks(first_of_block, [block_of(layers[i]) for i in first_of_block])
    figure.colorbar(image, ax=axes, label="signal to noise, dB")
    figure.suptitle(f"FP8 health: {run.name} ({run.recipe})", x=0.01, ha="left", fontweight="bold")
    return _save(pyplot, figure, folder / ("fp8-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", run.name).strip("-") + ".png"))


def _save(pyplot, figure, path: Path) -> Path:
    from octavo.report import write_whole
    import io

    data = io.BytesIO()
    figure.savefig(data, format="png")
    pyplot.close(figure)
    write_whole(path, data.getvalue())
    return path
