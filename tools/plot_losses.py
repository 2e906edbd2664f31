#!/usr/bin/env python3
"""Draws the loss curves of several runs and their gap to the high-precision run.

    plot_losses.py OUT.png RUN_DIR...

Each RUN_DIR holds what `octavo train` writes: metrics.jsonl (lines with "event": "train" or
"validation", "step" and "loss") and summary.json (with "recipe" and "flavour"). The folder of
`octavo compare` stands for the runs below it. The run whose recipe is high_precision is the one the
others are measured against; without one the lower panel is left out.
"""

import argparse
import json
import math
import pathlib
import sys
from dataclasses import dataclass, field

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

HIGH_PRECISION = "high_precision"
# One colour a recipe (Okabe and Ito's palette, which colour-blind readers can tell apart); FNUZ is
# the same colour, dashed.
COLOURS = {
    HIGH_PRECISION: "#222222",
    "tensorwise": "#E69F00",
    "rowwise": "#0072B2",
    "rowwise_with_gw_hp": "#56B4E9",
    "blockwise": "#009E73",
    "mxfp8": "#CC79A7",
}
OTHER_COLOURS = ["#D55E00", "#8C564B", "#7F7F7F", "#B8A600"]


@dataclass
class Run:
    folder: pathlib.Path
    recipe: str
    flavour: str
    steps: list = field(default_factory=list)
    losses: list = field(default_factory=list)
    validation: list = field(default_factory=list)  # (step, loss)

    @property
    def name(self):
        """The recipe's family: rowwise for rowwise(flavour=fnuz)."""
        return self.recipe.split("(")[0]

    @property
    def label(self):
        fields = self.recipe[len(self.name):].strip("()").split(",")
        fields = [f for f in fields if f and not f.startswith("flavour=")]
        flavour = ", FNUZ" if self.flavour == "fnuz" else ""
        # The fields of a varied recipe get their own line.
        return self.name + flavour + (f"\n({', '.join(fields)})" if fields else "")

    @property
    def diverged_at(self):
        """The step after the last finite loss, where the run does not end with one."""
        if math.isfinite(self.losses[-1]):
            return None
        finite = [i for i, loss in enumerate(self.losses) if math.isfinite(loss)]
        return self.steps[finite[-1] + 1 if finite else 0]


def fail(message):
    sys.exit(f"plot_losses.py: {message}")


def read_run(folder):
    summary_path, metrics_path = folder / "summary.json", folder / "metrics.jsonl"
    for path in (summary_path, metrics_path):
        if not path.is_file():
            fail(f"{path} is missing; give the folders of finished runs")
    try:
        summary = json.loads(summary_path.read_text())
        run = Run(folder, str(summary["recipe"]), str(summary.get("flavour") or "").lower())
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        fail(f"{summary_path} is not a run's summary ({error!r})")
    training, validation = {}, {}
    for number, line in enumerate(metrics_path.read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
            curve = {"train": training, "validation": validation}.get(entry["event"])
            if curve is not None:
                # After a resume a step may come twice: the later line holds. A loss that is not
                # finite is null: a hole in the curve.
                loss = entry["loss"]
                curve[int(entry["step"])] = math.nan if loss is None else float(loss)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            fail(f"{metrics_path}, line {number} is not a line of metrics ({error!r})")
    run.steps, run.losses = sorted(training), [training[step] for step in sorted(training)]
    run.validation = [(s, v) for s, v in sorted(validation.items()) if math.isfinite(v)]
    if not run.steps:
        fail(f"{metrics_path} holds no losses")
    return run


def run_folders(folder):
    """The folder itself, or the finished runs below it where it is a comparison's."""
    if (folder / "metrics.jsonl").exists() or not folder.is_dir():
        return [folder]
    below = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    unfinished = [path for path in below if not (path / "summary.json").exists()]
    for path in unfinished:
        print(f"plot_losses.py: left out {path}: it has no summary.json, so it is not finished",
              file=sys.stderr)
    finished = [path for path in below if path not in unfinished]
    if not finished:
        fail(f"{folder} holds no finished run and no runs below it")
    return finished


def smooth(values, width):
    """Centred mean over `width` values, over fewer at the ends; holes stay out of it."""
    half, result = width // 2, []
    for i in range(len(values)):
        near = [v for v in values[max(0, i - half):i + half + 1] if math.isfinite(v)]
        result.append(sum(near) / len(near) if near else math.nan)
    return result


def percent(loss, base):
    return 100 * (loss / base - 1) if base > 0 else math.nan


def training_gap(run, base, width):
    """Steps that both runs logged, and the gap of their smoothed losses there."""
    of_base = dict(zip(base.steps, base.losses))
    common = [(s, v, of_base[s]) for s, v in zip(run.steps, run.losses) if s in of_base]
    ours = smooth([v for _, v, _ in common], width)
    theirs = smooth([b for _, _, b in common], width)
    # Smoothing must not carry a curve on past its end.
    gaps = [percent(a, b) if math.isfinite(v) else math.nan
            for a, b, (_, v, _) in zip(ours, theirs, common)]
    return [s for s, _, _ in common], gaps


def validation_gap(run, base):
    of_base = dict(base.validation)
    return [(s, percent(v, of_base[s])) for s, v in run.validation if s in of_base]


def colours_of(runs):
    colours, spare = {}, list(OTHER_COLOURS)
    for run in runs:
        if run.name not in colours:
            colours[run.name] = COLOURS.get(run.name) or (spare.pop(0) if spare else "#444444")
    return {id(run): colours[run.name] for run in runs}


def label_ends(axes, ends):
    """Writes each curve's label right of its end, moved apart where they would overlap.

    ends: (height of the curve's end, text, colour). Labels keep the order of the heights and stay
    within the panel while there is room.
    """
    low, high = axes.get_ylim()
    panel_points = axes.get_window_extent().height / axes.figure.dpi * 72
    ends = sorted(ends)
    sizes = [(12.5 * (text.count("\n") + 1) + 1.5) / panel_points * (high - low)
             for _, text, _ in ends]
    places = []
    for (y, *_), size in zip(ends, sizes):  # upwards: above the one before
        least = places[-1] + (sizes[len(places) - 1] + size) / 2 if places else low + size / 2
        places.append(max(y, least))
    most = high
    for i in reversed(range(len(places))):  # downwards: below the top, and the one after
        places[i] = min(places[i], most - sizes[i] / 2)
        most = places[i] - sizes[i] / 2
    for place, (_, text, colour) in zip(places, ends):
        axes.annotate(text, (1, place), xycoords=("axes fraction", "data"), xytext=(9, 0),
                      textcoords="offset points", va="center", fontsize=9.5, color=colour,
                      linespacing=1.1, annotation_clip=False)


def style(run, colour):
    dashed = run.flavour == "fnuz" and run.recipe != HIGH_PRECISION
    return dict(color=colour, linewidth=2.4 if run.recipe == HIGH_PRECISION else 1.4,
                linestyle=(0, (4, 2)) if dashed else "-",
                zorder=3 if run.recipe == HIGH_PRECISION else 4)


DOTS = dict(linestyle="none", marker="o", markersize=5.5, markeredgecolor="white",
            markeredgewidth=0.8, zorder=6, clip_on=False)


def draw_losses(axes, runs, colours, width):
    finite, ends = [], []
    for run in runs:
        colour = colours[id(run)]
        curve = [v if math.isfinite(raw) else math.nan
                 for v, raw in zip(smooth(run.losses, width), run.losses)]
        axes.plot(run.steps, curve, **style(run, colour))
        if run.validation:
            axes.plot(*zip(*run.validation), color=colour, **DOTS)
        numbers = [v for v in curve + [v for _, v in run.validation] if math.isfinite(v)]
        finite += numbers
        text = run.label
        if run.diverged_at is not None:
            text += f"\nnot finite from step {run.diverged_at}"
        at_end = [v for v in curve if math.isfinite(v)]
        ends.append((at_end[-1] if at_end else math.inf, text, colour))
    low, high = (min(finite), max(finite)) if finite else (0, 1)
    margin = 0.06 * (high - low or 1)
    axes.set_ylim(low - margin, high + margin)
    axes.set_ylabel("loss (nats per token)")
    dots = "; dots: validation loss" if any(r.validation for r in runs) else ""
    axes.set_title(f"Training loss{dots}", loc="left", fontsize=10.5, color="#555555")
    label_ends(axes, ends)


def draw_gaps(axes, base, others, colours, width):
    """Returns each run's final gap, of the validation loss where both have one."""
    axes.axhspan(-1, 1, color="#F1F1F1", zorder=0)
    axes.axhline(0, color=COLOURS[HIGH_PRECISION], linewidth=2.4, zorder=3)
    ends, everything, finals, all_dots = [], [1.0], [], []
    for run in others:
        steps, gaps = training_gap(run, base, width)
        dots = validation_gap(run, base)
        axes.plot(steps, gaps, **style(run, colours[id(run)]))
        numbers = [g for g in gaps if math.isfinite(g)]
        height = numbers[-1] if numbers else math.inf
        everything += [abs(g) for g in numbers + [g for _, g in dots] if math.isfinite(g)]
        if run.diverged_at is not None:
            finals.append(math.nan)
        else:
            finals.append(dots[-1][1] if dots else height)
            height = finals[-1]
        number = "not finite" if math.isnan(finals[-1]) else f"{finals[-1]:+.2f}%"
        ends.append((height, f"{run.label} {number}", colours[id(run)]))
        all_dots += [(*dot, colours[id(run)]) for dot in dots]
    # A run far away must not flatten the others: the panel ends at 5%.
    reach = min(max(everything), 5.0) * 1.12
    for step, gap, colour in all_dots:
        if abs(gap) <= reach:
            axes.plot(step, gap, color=colour, **DOTS)
    axes.set_ylim(-reach, reach)
    axes.set_ylabel("gap to high precision (%)")
    axes.set_title("100 (loss / high-precision loss − 1). Lines: training loss, means of "
                   f"{width} logged steps"
                   + ("; dots, numbers: validation" if all_dots else "") + ". Grey: within 1%",
                   loc="left", fontsize=9.5, color="#555555")
    label_ends(axes, ends)
    return finals


def headline(runs, finals):
    if not finals:
        return "Training loss" if len(runs) > 1 else f"Training loss, {runs[0].label}"
    lost = sum(math.isnan(gap) for gap in finals)
    if lost:
        return f"{lost} of {len(finals)} low-precision runs ended in losses that are not finite"
    worst = max(finals, key=abs)
    verb = "follows" if abs(worst) <= 1 else "leaves"
    return f"FP8 {verb} high precision: the largest final gap is {worst:+.2f}%"


def draw(runs, out):
    base = next((r for r in runs if r.recipe == HIGH_PRECISION), None)
    others = [r for r in runs if r is not base]
    runs = ([base] if base else []) + others  # high precision below the other curves
    colours = colours_of(runs)
    width = max(1, len(runs[0].steps) // 25) | 1
    two = base is not None and bool(others)

    plt.rcParams.update({"font.size": 10.5, "axes.spines.top": False, "axes.spines.right": False,
                         "axes.grid": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.8,
                         "axes.axisbelow": True, "font.family": "DejaVu Sans"})
    figure, panels = plt.subplots(2 if two else 1, 1, figsize=(10, 7.6 if two else 4.8),
                                  sharex=True, squeeze=False, dpi=150,
                                  height_ratios=[1.1, 1] if two else [1])
    figure.subplots_adjust(left=0.08, right=0.765, top=0.885 if two else 0.83,
                           bottom=0.07 if two else 0.11, hspace=0.2)
    panels[0][0].set_xlim(0, max(max(r.steps) for r in runs))
    panels[-1][0].set_xlabel("step")
    draw_losses(panels[0][0], runs, colours, max(1, width // 3) | 1)
    finals = draw_gaps(panels[1][0], base, others, colours, width) if two else []
    figure.text(0.08, 0.955 if two else 0.93, headline(runs, finals), fontsize=14,
                fontweight="bold", va="center")
    figure.savefig(out)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path, metavar="OUT.png")
    parser.add_argument("runs", type=pathlib.Path, nargs="+", metavar="RUN_DIR")
    options = parser.parse_args(arguments)
    folders = [run for folder in options.runs for run in run_folders(folder)]
    draw([read_run(folder) for folder in folders], options.out)


if __name__ == "__main__":
    main()
