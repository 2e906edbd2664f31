"""One page about runs: loss, gap to high precision, throughput, memory, FP8 health.

    python -m octavo report runs/compared --output report

Writes report/index.html, which holds everything it shows (inline SVG, no network), and the same curves
as report/*.png. Runs are folders of `octavo train` or of MetricsLog, or that of `octavo compare`.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import sys
import tempfile
from pathlib import Path

from octavo.report_charts import (
    LEFT, RIGHT, Series, colour_bar, heat_map, line_chart, robust_range,
)
from octavo.report_data import (
    HIGH_PRECISION, OPERANDS, ReportError, Run, gap, health_series, is_number, read_runs,
    reference_of, smoothed, smoothing_of, thinned, worst_layers,
)

HELP = "one HTML page (and PNGs) of runs: loss, gap, throughput, memory, FP8 health"

COLOURS = {HIGH_PRECISION: "k0", "tensorwise": "k1", "rowwise": "k2", "rowwise_with_gw_hp": "k3",
           "blockwise": "k4", "mxfp8": "k5"}
OTHERS = ["k6", "k7", "k8", "k9"]
OPERAND_COLOURS = {"x": "k2", "w": "k1", "dy": "k4"}
OPERAND_NAMES = {"x": "x (input)", "w": "w (weight)", "dy": "dy (output gradient)"}
# key, tab, unit, factor, what it says
HEALTH = [
    ("snr_db", "Signal to noise", " dB", 1.0,
     "10 log10(sum x² / sum (x − its FP8 value)²): higher is better. A rounded e4m3 has about 31 dB."),
    ("flushed", "Flushed to zero", " %", 100.0,
     "Elements that are not zero and whose FP8 value is: too small for their block's scale."),
    ("saturated", "Saturated", " %", 100.0,
     "Elements stored as the format's largest magnitude; with scales from the amax each block has a few."),
]


def styles_of(runs: list[Run]) -> list[tuple[str, bool]]:
    """(colour class, dashed) of each run: a colour a recipe, FNUZ and second runs of it dashed."""
    styles, used, others = [], set(), iter(OTHERS * len(runs))
    for run in runs:
        fnuz = run.flavour == "fnuz"
        colour = COLOURS.get(run.family)
        if colour is None or (colour, fnuz) in used:
            colour = next(others)
        used.add((colour, fnuz))
        styles.append((colour, fnuz))
    return styles


class Page:
    """Collects the page's cards and the numbers behind them."""

    def __init__(self):
        self.cards: list[str] = []
        self.charts: dict[str, list] = {}
        self.heats: dict[str, dict] = {}
        self.rows: list[list[str]] = []

    def chart(self, ident: str, title: str, note: str, y_label: str, series: list[Series], **options) -> str:
        """The card of a line chart; "" where there is nothing to draw."""
        series = [Series(**{**vars(s), "points": thinned(s.points)}) for s in series if s.points]
        if not series:
            return ""
        named = [s for s in series if not s.faint]
        self.charts[ident] = [{"label": s.label, "points": [[x, float(f"{y:.6g}")] for x, y in s.points]}
                              for s in named]
        legend = "".join(f'<span class="{s.colour}{" dashed" if s.dashed else ""}">{html.escape(s.label)}</span>'
                         for s in named)
        svg = line_chart(ident, title, y_label, series, **options)
        return (f'<section class="card"><h2>{html.escape(title)}</h2><p>{note}</p>'
                f'<div class="legend">{legend}</div>{svg}</section>')


def curves(runs, styles, points_of, **more) -> list[Series]:
    return [Series(run.name, colour, points_of(run), dashed=dashed, **more)
            for run, (colour, dashed) in zip(runs, styles)]


def training_series(runs: list[Run], reference: Run | None) -> dict[str, list[Series]]:
    """What both the page and the PNGs draw: chart -> series."""
    styles, width = styles_of(runs), smoothing_of(runs)
    loss = curves(runs, styles, lambda run: smoothed(run.series("loss"), width))
    if len(runs) <= 2 and width > 1:  # more would cover each other
        loss += curves(runs, styles, lambda run: run.series("loss"), faint=True)
    charts = {
        "loss": loss,
        "gap": [],
        "throughput": curves(runs, styles, lambda run: smoothed(run.series("tokens_per_second"), width)),
        "memory": curves(runs, styles, lambda run: [(s, m / 2**20) for s, m in run.series("memory")]),
        "gradient_norm": curves(runs, styles, lambda run: smoothed(run.series("gradient_norm"), width)),
        "validation": [s for s in curves(runs, styles, lambda run: sorted(run.validation.items()))
                       if len(s.points) > 1],
    }
    if reference is not None:
        others = [(run, style) for run, style in zip(runs, styles) if run is not reference]
        charts["gap"] = curves([r for r, _ in others], [s for _, s in others],
                               lambda run: gap(run, reference, 2 * width))
    if all(len(s.points) == 0 or max(y for _, y in s.points) == 0 for s in charts["memory"]):
        charts["memory"] = []
    return charts


def zero_based(series: list[Series]):
    high = max((y for s in series for _, y in s.points), default=1.0)
    return (0.0, high * 1.08 or 1.0)


def summary_table(runs: list[Run], reference: Run | None) -> str:
    heads = ["run", "recipe", "flavour", "steps", "train loss", "validation loss", "gap", "tokens/s",
             "peak memory"]
    rows = []
    base = reference and last_validation(reference)
    for run in runs:
        validation, width = last_validation(run), smoothing_of(runs)
        loss = smoothed(run.series("loss"), width)
        against = "" if base is None or validation is None or run is reference else f"{100 * (validation / base - 1):+.2f}%"
        rates = sorted(value for _, value in run.series("tokens_per_second"))
        peak = run.summary.get("peak_memory") or max((m for _, m in run.series("memory")), default=0)
        rows.append([
            html.escape(run.name), html.escape(run.recipe), html.escape(run.flavour),
            f"{max(run.train):,}", f"{loss[-1][1]:.4f}" if loss else "",
            f"{validation:.4f}" if validation is not None else "", against,
            f"{rates[len(rates) // 2]:,.0f}" if rates else "", f"{peak / 2**20:,.0f} MiB" if peak else "",
        ])
    numeric = range(3, len(heads))
    head = "".join(f'<th{" class=n" if i in numeric else ""}>{h}</th>' for i, h in enumerate(heads))
    body = "".join("<tr>" + "".join(f'<td{" class=n" if i in numeric else ""}>{c}</td>' for i, c in enumerate(r)) + "</tr>"
                   for r in rows)
    return f'<section class="card scroll"><table id="runs"><tr>{head}</tr>{body}</table></section>'


def last_validation(run: Run) -> float | None:
    if run.validation:
        return run.validation[max(run.validation)]
    value = run.summary.get("validation_loss")
    return value if is_number(value) else None


def health_card(page: Page, run: Run, number: int) -> str:
    """FP8 health of one run: a tab for each figure, with its course and each layer's."""
    layers, steps = run.layers(), sorted(run.fp8)
    columns = steps if len(steps) <= 32 else [steps[round(i * (len(steps) - 1) / 31)] for i in range(32)]
    page.rows.append(layers)
    tabs, panels, styles = [], [], []
    for tab, (key, name, unit, factor, note) in enumerate(HEALTH):
        ident = f"fp8-{number}-{key}"
        series, grids = [], {}
        for operand in OPERANDS:
            median, worst = health_series(run, operand, key)
            scaled = [[(s, y * factor) for s, y in points] for points in (median, worst)]
            colour = OPERAND_COLOURS[operand]
            series += [Series(f"{operand}, median layer", colour, scaled[0]),
                       Series(f"{operand}, worst layer", colour, scaled[1], dashed=True)]
            figures = [[run.fp8[s].get(layer, {}).get(operand, {}).get(key) for s in columns] for layer in layers]
            grids[operand] = [[float(f"{v * factor:.4g}") if is_number(v) else None for v in row] for row in figures]
        seen = sorted(v for grid in grids.values() for row in grid for v in row if v is not None)
        if not seen:
            continue
        low, high = (seen[len(seen) // 100], seen[-1 - len(seen) // 100]) if key == "snr_db" else (0.0, seen[-1])
        chart = page.chart(ident, f"{name}, {run.name}", html.escape(note), name.lower() + unit.replace(" ", ", "),
                           series, y_range=robust_range(series, 0.0) if key == "snr_db" else zero_based(series))
        heats = ""
        for operand in OPERANDS:
            heat = f"{ident}-{operand}"
            page.heats[heat] = {"rows": number, "columns": columns, "values": grids[operand], "unit": unit}
            heats += heat_map(heat, OPERAND_NAMES[operand], layers, columns, grids[operand], low, high,
                              labels=operand == OPERANDS[0])
        checked = " checked" if tab == 0 else ""
        tabs.append(f'<input type="radio" name="tab-{number}" id="tab-{ident}"{checked}>'
                    f'<label for="tab-{ident}">{name}</label>')
        styles.append(f"#tab-{ident}:checked ~ .panel.{ident} {{ display: block; }}")
        inner = chart.replace('<section class="card">', "<div>").replace("</section>", "</div>")
        panels.append(f'<div class="panel {ident}">{inner}<p>Each layer at each sampled step:</p>'
                      f'{colour_bar(low, high, unit)}<div class="heats">{heats}</div></div>')
    worst = "".join(
        f"<tr><td>{html.escape(layer)}</td><td>{operand}</td><td class=n>{f['snr_db']:.1f} dB</td>"
        f"<td class=n>{100 * (f.get('flushed') or 0):.3f}%</td><td class=n>{100 * (f.get('saturated') or 0):.3f}%</td></tr>"
        for layer, operand, f in worst_layers(run))
    table = ('<p>Lowest signal to noise at the last sample:</p><div class="scroll"><table><tr><th>layer</th><th>operand</th>'
             f"<th class=n>SNR</th><th class=n>flushed</th><th class=n>saturated</th></tr>{worst}</table></div>")
    if not panels:
        return ""
    return (f'<section class="card fp8"><h2>FP8 health: {html.escape(run.name)}</h2>'
            f"<p>{html.escape(run.recipe)}, {html.escape(run.flavour)}; {len(layers)} layers, sampled at {len(steps)} steps.</p>"
            f'<style>{"".join(styles)}</style><div class="tabs">{"".join(tabs + panels)}</div>{table}</section>')


def build_page(runs: list[Run], reference: Run | None, title: str) -> str:
    page = Page()
    series, width = training_series(runs, reference), smoothing_of(runs)
    smooth = f"exponential mean over {width} steps" if width > 1 else "every step"
    cards = [page.chart("loss", "Training loss", f"Nats per token, {smooth}.", "loss", series["loss"])]
    if reference is not None:
        cards.append(page.chart("gap", f"Gap to {reference.name}",
                                "Training loss above that run's at the same step, of the smoothed curves.",
                                "gap, %", series["gap"], zero_line=True))
    cards += [
        page.chart("throughput", "Throughput", f"Tokens per second of training steps, {smooth}.", "tokens/s",
                   series["throughput"], y_range=zero_based(series["throughput"])),
        page.chart("memory", "Memory", "In use after each step, MiB: tensors on a GPU, otherwise the process.",
                   "MiB", series["memory"], y_range=zero_based(series["memory"])),
        page.chart("gradient_norm", "Gradient norm", f"Before clipping, {smooth}.", "norm", series["gradient_norm"]),
        page.chart("validation", "Validation loss", "Nats per token of held-out data.", "loss", series["validation"]),
    ]
    health = [health_card(page, run, i) for i, run in enumerate([r for r in runs if r.fp8])]
    if not any(health):
        health = ['<p>No FP8 health: train with --fp8-stats N (octavo train), or call MetricsLog.fp8().</p>']
    here = Path(__file__).resolve().parent
    config = next((run.config for run in runs if run.config), {})
    about = [f"{key} {config[key]}" for key in ("preset", "dim", "layers", "vocabulary", "batch", "sequence",
                                                 "accumulation", "steps", "lr", "device", "dtype") if key in config]
    data = {"charts": page.charts, "heats": page.heats, "rows": page.rows, "margins": {"left": LEFT, "right": RIGHT}}
    numbers = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{(here / 'report_page.css').read_text()}</style></head><body><main>"
        f'<h1>{html.escape(title)}</h1><p>{html.escape("; ".join(about))}</p>{summary_table(runs, reference)}'
        f'<div class="grid-of-cards">{"".join(cards)}</div>{"".join(health)}</main><div id="tip"></div>'
        f'<script type="application/json" id="data">{numbers}</script>'
        f"<script>{(here / 'report_page.js').read_text()}</script></body></html>\n"
    )


def write_whole(path: Path, data: bytes) -> None:
    """`path` is whole or what it was."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def write_report(paths: list[str], output: str | Path, *, reference: str | None = None,
                 title: str | None = None, png: bool = True) -> Path:
    """The page of these runs as OUTPUT/index.html, and PNGs beside it; returns the page's path.
    Errors (ReportError): no run there, a damaged one, matplotlib missing where PNGs are asked for."""
    runs = read_runs(paths)
    base = reference_of(runs, reference)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    write_whole(page, build_page(runs, base, title or "Octavo: " + ", ".join(p.rstrip("/") for p in paths)).encode())
    if png:
        from octavo.report_png import draw_pngs

        draw_pngs(folder, runs, training_series(runs, base), base)
    return page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN",
                        help="a run's folder or its metrics.jsonl, or the folder of a comparison")
    parser.add_argument("--output", default="report", metavar="DIR", help="where to write [report]")
    parser.add_argument("--reference", metavar="RUN",
                        help="the run the gap is measured against [the one in high_precision]")
    parser.add_argument("--title", help="of the page")
    parser.add_argument("--no-png", action="store_true", help="the page only (PNGs need matplotlib)")


def run(options) -> int:
    try:
        page = write_report(options.runs, options.output, reference=options.reference,
                            title=options.title, png=not options.no_png)
        print(f"wrote {page}")
        return 0
    except ReportError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or options.output}: {error.strerror}; check the path and free space"
    print(f"octavo report: {message}", file=sys.stderr)
    return 1
