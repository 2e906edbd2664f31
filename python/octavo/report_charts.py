"""Line charts and heat maps as inline SVG. Colours are CSS classes, so a page can be light or dark."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 290
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 40


@dataclass
class Series:
    label: str
    colour: str  # CSS class that sets the stroke
    points: list[tuple[float, float]]
    dashed: bool = False
    faint: bool = False  # behind the others, without a legend entry
    markers: bool = False  # dots instead of a line


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round numbers within [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    step = 10 ** math.floor(math.log10(span / wanted))
    for factor in (1, 2, 5, 10):
        if span / (step * factor) <= wanted:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float, step: float) -> str:
    """With thousands separators, k and M where they shorten, and the decimals that the step needs."""
    if abs(value) < step / 1e6:
        return "0"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * size or (abs(value) >= size and step >= size / 10):
            return f"{value / size:.3g}{unit}"
    if 0 < step < 1e-4:
        return f"{value:.4g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:,.{decimals}f}"


def robust_range(series: list[Series], skip: float = 0.08) -> tuple[float, float]:
    """The range of all points but those of the first steps, which fall from far above."""
    lines = [s for s in series if s.points and not s.faint]
    last = max((p[0] for s in lines for p in s.points), default=1)
    first = min((p[0] for s in lines for p in s.points), default=0)
    after = first + skip * (last - first)
    values = [y for s in lines for x, y in s.points if x >= after]
    values = values or [y for s in lines for _, y in s.points] or [0.0, 1.0]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def _text(x, y, text, css="tick", anchor="middle", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}"{extra}>{html.escape(text)}</text>'


def line_chart(ident: str, title: str, y_label: str, series: list[Series], *, y_range=None,
               x_label: str = "step", zero_line: bool = False) -> str:
    """An <svg> of the series over the same x. Curves have class "curve" and data-points."""
    low, high = y_range or robust_range(series)
    xs = [x for s in series for x, _ in s.points]
    x_low, x_high = (min(xs), max(xs)) if xs else (0, 1)
    if x_low == x_high:
        x_low, x_high = x_low - 1, x_high + 1
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def sx(x):
        return LEFT + (x - x_low) / (x_high - x_low) * inner_w

    def sy(y):
        return TOP + (high - y) / (high - low) * inner_h

    out = [
        f'<svg class="chart" id="{ident}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}" data-x0="{x_low}" data-x1="{x_high}" data-y0="{low!r}" '
        f'data-y1="{high!r}">',
        f'<clipPath id="{ident}-clip"><rect x="{LEFT}" y="{TOP}" width="{inner_w}" height="{inner_h}"/></clipPath>',
    ]
    y_ticks = ticks(low, high, 6)
    y_step = y_ticks[1] - y_ticks[0] if len(y_ticks) > 1 else 1.0
    for value in y_ticks:
        y = sy(value)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(_text(LEFT - 8, y + 4, tick_text(value, y_step), anchor="end"))
    x_ticks = ticks(x_low, x_high, 8)
    x_step = x_ticks[1] - x_ticks[0] if len(x_ticks) > 1 else 1.0
    for value in x_ticks:
        if value != int(value) and x_high - x_low < 8:
            continue  # half a step is none
        out.append(_text(sx(value), HEIGHT - BOTTOM + 18, tick_text(value, x_step)))
    base = HEIGHT - BOTTOM
    out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    out.append(_text(LEFT + inner_w / 2, HEIGHT - 5, x_label, css="label"))
    middle = TOP + inner_h / 2
    out.append(_text(14, middle, y_label, css="label", extra=f' transform="rotate(-90 14 {middle:.1f})"'))
    if zero_line and low < 0 < high:
        out.append(f'<line class="zero" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{sy(0):.1f}" y2="{sy(0):.1f}"/>')
    out.append(f'<g clip-path="url(#{ident}-clip)">')
    for s in sorted(series, key=lambda s: not s.faint):
        css = f"curve {s.colour}" + (" dashed" if s.dashed else "") + (" faint" if s.faint else "")
        attributes = f'data-label="{html.escape(s.label)}" data-points="{len(s.points)}"'
        if s.markers or len(s.points) == 1:
            dots = "".join(f'<circle cx="{sx(x):.1f}" cy="{sy(y):.1f}" r="3.5"/>' for x, y in s.points)
            out.append(f'<g class="{css} dots" {attributes}>{dots}</g>')
        elif s.points:
            d = "L".join(f"{sx(x):.1f} {sy(y):.1f}" for x, y in s.points)
            out.append(f'<path class="{css}" {attributes} d="M{d}"/>')
    out.append("</g>")
    out.append(f'<line class="cursor" y1="{TOP}" y2="{base}" x1="-9" x2="-9"/></svg>')
    return "".join(out)


# Dark blue over green to yellow, each lighter than the last, so that it reads without colour too.
RAMP = [tuple(bytes.fromhex(colour)) for colour in
        ("261656", "343a81", "2d5f8e", "24828e", "22a386", "51c06d", "a0da39", "f0e53c")]
LEVELS = 24


def ramp(share: float) -> str:
    at = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    i = min(int(at), len(RAMP) - 2)
    mixed = (a + (b - a) * (at - i) for a, b in zip(RAMP[i], RAMP[i + 1]))
    return "#%02x%02x%02x" % tuple(round(v) for v in mixed)


def heat_map(ident: str, title: str, rows: list[str], columns: list[int],
             values: list[list[float | None]], low: float, high: float, *, labels: bool) -> str:
    """An <svg> with a cell for each row (a layer) and column (a step); a row's name and value show
    where the pointer is. `labels`: the first row of each block is named at the left."""
    cell_h = max(4.0, min(14.0, 420 / max(len(rows), 1)))
    left, width, top = (92 if labels else 8), 320 + (92 if labels else 8), 20
    height = top + cell_h * len(rows) + 30
    cell_w = (width - left - 6) / max(len(columns), 1)
    by_level: dict[int, list[str]] = {}
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            if value is None:
                continue
            level = 0 if high <= low else round((value - low) / (high - low) * (LEVELS - 1))
            by_level.setdefault(min(max(level, 0), LEVELS - 1), []).append(
                f"M{left + c * cell_w:.1f} {top + r * cell_h:.1f}h{cell_w + 0.3:.1f}"
                f"v{cell_h + 0.3:.1f}h-{cell_w + 0.3:.1f}z")
    out = [f'<svg class="heat" id="{ident}" viewBox="0 0 {width} {height:.0f}" role="img" '
           f'aria-label="{html.escape(title)}" data-left="{left}" data-top="{top}" '
           f'data-cw="{cell_w:.4f}" data-ch="{cell_h:.4f}">',
           _text(left + (width - left - 6) / 2, 13, title, css="heat-title")]
    for level, cells in sorted(by_level.items()):
        out.append(f'<path class="cells" fill="{ramp(level / (LEVELS - 1))}" d="{"".join(cells)}"/>')
    if labels:
        last_y, last_block = -99.0, None
        for r, name in enumerate(rows):
            block = block_of(name)
            y = top + (r + 0.5) * cell_h + 4
            if block != last_block and y - last_y >= 12:
                out.append(_text(left - 6, y, block, anchor="end"))
                last_y = y
            last_block = block
    shown = sorted({0, len(columns) // 2, len(columns) - 1}) if columns else []
    for c in shown:
        anchor = "start" if c == 0 and len(shown) > 1 else "end" if c == len(columns) - 1 else "middle"
        x = left + (c + (0 if anchor == "start" else 1 if anchor == "end" else 0.5)) * cell_w
        out.append(_text(x, height - 13, f"{columns[c]:,}", anchor=anchor))
    out.append("</svg>")
    return "".join(out)


def block_of(layer: str) -> str:
    """"layer 3" of model.layers.3.mlp.up_proj; otherwise the name's last part."""
    parts = layer.split(".")
    for before, number in zip(parts, parts[1:]):
        if number.isdigit():
            return f"{before.removesuffix('s')} {number}"
    return parts[-1]


def colour_bar(low: float, high: float, unit: str) -> str:
    stops = "".join(f'<stop offset="{i / 7:.3f}" stop-color="{ramp(i / 7)}"/>' for i in range(8))
    ident = f"ramp-{abs(hash((low, high, unit))) % 10**8}"
    return (f'<svg class="bar" viewBox="0 0 260 30"><linearGradient id="{ident}">{stops}</linearGradient>'
            f'<rect x="0" y="2" width="260" height="10" rx="2" fill="url(#{ident})"/>'
            + _text(0, 26, f"{low:.3g}{unit}", anchor="start")
            + _text(260, 26, f"{high:.3g}{unit}", anchor="end") + "</svg>")
