"""python -m octavo report: one page about runs, opened in headless Chromium where there is one."""

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
from octavo import report, report_charts, report_data
from octavo.metrics import MetricsLog

LAYERS = [f"model.layers.{i}.{name}" for i in (0, 1, 10) for name in ("mlp.down_proj", "self_attn.q_proj")]


def write_run(folder, recipe, steps=60, shift=0.0, fp8_every=0):
    """A run as a training loop in Python writes it."""
    with MetricsLog(folder, recipe=recipe, config={"dim": 64, "batch": 8}) as log:
        for step in range(1, steps + 1):
            loss = 2 + 3 * math.exp(-step / 15) + shift + 0.01 * math.sin(step)
            log.train(step, loss, tokens=512, seconds=0.1 + 0.01 * math.cos(step), lr=1e-3,
                      gradient_norm=1 + 1 / step, memory=(100 + step) << 20)
            if fp8_every and step % fp8_every == 0:
                log.fp8(step, {layer: {operand: {"saturated": 1e-3, "flushed": 2e-3 * (i + 1), "snr_db": 30.0 - i}
                                       for i, operand in enumerate(("x", "w", "dy"))} for layer in LAYERS})
        log.validation(steps, 2.1 + shift)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """(index.html's path, its text): high precision and two recipes, one with FP8 health."""
    folder = tmp_path_factory.mktemp("report")
    write_run(folder / "runs/base", "high_precision")
    write_run(folder / "runs/mxfp8", "mxfp8", shift=0.02)
    write_run(folder / "runs/rowwise", "rowwise", shift=0.01, fp8_every=10)
    path = report.write_report([str(folder / "runs")], folder / "out")
    return path, path.read_text()


def curves(html, chart):
    """Label -> points of the chart's curves."""
    svg = re.search(rf'<svg class="chart" id="{chart}".*?</svg>', html, re.DOTALL).group(0)
    return {label: int(points) for label, points in re.findall(r'data-label="([^"]*)" data-points="(\d+)"', svg)}


def test_every_curve(page):
    _, html = page
    assert curves(html, "loss") == {"base": 60, "mxfp8": 60, "rowwise": 60}
    assert curves(html, "gap") == {"mxfp8": 60, "rowwise": 60}
    for chart in ("throughput", "memory", "gradient_norm"):
        assert set(curves(html, chart)) == {"base", "mxfp8", "rowwise"}
    for figure in ("snr_db", "flushed", "saturated"):
        assert curves(html, f"fp8-0-{figure}") == {
            f"{operand}, {which} layer": 6 for operand in ("x", "w", "dy") for which in ("median", "worst")}
        for operand in ("x", "w", "dy"):
            assert f'id="fp8-0-{figure}-{operand}"' in html


def test_the_page_needs_nothing_else(page):
    _, html = page
    assert not re.search(r'(src|href)=|url\((?!#)|@import|https?://(?!www\.w3\.org)', html)
    assert "prefers-color-scheme: dark" in html


def test_the_numbers(page):
    path, html = page
    row = re.search(r'<tr><td>rowwise</td>.*?</tr>', html).group(0)
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    assert cells[:4] == ["rowwise", "rowwise", "ocp", "60"]
    assert cells[5:7] == ["2.1100", f"{100 * (2.11 / 2.1 - 1):+.2f}%"] and cells[8] == "160 MiB"
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))
    loss = next(s for s in data["charts"]["loss"] if s["label"] == "base")["points"]
    assert [p[0] for p in loss] == list(range(1, 61))
    gap = next(s for s in data["charts"]["gap"] if s["label"] == "rowwise")["points"]
    assert all(0 < p[1] < 0.6 for p in gap)  # 0.01 over a loss of 2 to 5
    # the worst layer is the last operand's; layers in the model's order
    assert data["rows"][0] == [f"model.layers.{i}.{n}" for i in (0, 1, 10) for n in ("self_attn.q_proj", "mlp.down_proj")]
    assert data["heats"]["fp8-0-snr_db-dy"]["values"][0] == [28.0] * 6
    assert data["heats"]["fp8-0-flushed-w"]["values"][5] == [0.4] * 6


def test_pngs(page):
    path, _ = page
    names = sorted(p.name for p in path.parent.glob("*.png"))
    assert names == ["fp8-rowwise.png", "gap.png", "gradient_norm.png", "loss.png", "memory.png", "throughput.png"]
    for name in names:
        data = (path.parent / name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24])[0] >= 1000


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if shutil.which(name):
            return [name, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    pytest.skip("Chromium is not installed: apt-get install chromium")


def colours_of(path):
    image = pytest.importorskip("PIL.Image", reason="needs pillow, which matplotlib brings")
    with image.open(path) as opened:
        data = opened.convert("RGB").tobytes()
    return set(zip(data[0::3], data[1::3], data[2::3]))


def test_chromium_draws_it(page, tmp_path):
    path, _ = page
    browser = chromium()
    dom = subprocess.run([*browser, "--dump-dom", f"file://{path}"], capture_output=True, text=True, timeout=120)
    assert dom.returncode == 0, dom.stderr
    assert 'data-ready="yes"' in dom.stdout  # the script ran to its end
    assert len(re.findall(r'<path class="curve', dom.stdout)) >= 14 + 18
    shot = tmp_path / "shot.png"
    subprocess.run([*browser, "--window-size=1000,900", f"--screenshot={shot}", f"file://{path}"],
                   capture_output=True, timeout=120, check=True)
    seen = colours_of(shot)
    css = (REPOSITORY / "python/octavo/report_page.css").read_text()
    for colour in ("--c2", "--c5"):  # rowwise and mxfp8, in a light page
        value = re.search(rf"{colour}: #(\w\w)(\w\w)(\w\w)", css).groups()
        assert tuple(int(v, 16) for v in value) in seen, colour


def test_torn_lines_and_resumed_runs(tmp_path):
    write_run(tmp_path / "run", "rowwise", steps=20)
    with MetricsLog(tmp_path / "run", recipe="rowwise", resume=True, step=10) as log:
        log.train(11, 1.5, tokens=10)
    with open(tmp_path / "run/metrics.jsonl", "a") as file:
        file.write('{"event": "train", "st')
    run = report_data.read_run(tmp_path / "run")
    assert sorted(run.train) == list(range(1, 12)) and run.train[11]["loss"] == 1.5 and not run.validation
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    (tmp_path / "run/metrics.jsonl").write_text("\n".join(["{torn", *lines]))
    with pytest.raises(report_data.ReportError, match=r"metrics.jsonl:1: no line of metrics"):
        report_data.read_run(tmp_path / "run")


def test_what_is_not_finite_is_left_out(tmp_path):
    with MetricsLog(tmp_path / "run") as log:
        log.train(1, float("nan"), gradient_norm=float("inf"))
        log.train(2, 2.0)
    assert "NaN" not in (tmp_path / "run/metrics.jsonl").read_text()
    run = report_data.read_run(tmp_path / "run")
    assert run.series("loss") == [(2, 2.0)] and run.series("gradient_norm") == []
    report.write_report([str(tmp_path / "run")], tmp_path / "out", png=False)


def test_one_step_is_enough(tmp_path):
    write_run(tmp_path / "run", "rowwise", steps=1, fp8_every=1)
    html = report.write_report([str(tmp_path / "run")], tmp_path / "out").read_text()
    assert curves(html, "loss") == {"run": 1} and 'id="gap"' not in html


def test_long_runs_are_thinned_with_their_peaks():
    points = [(i, 100.0 if i == 7777 else math.sin(i / 50)) for i in range(100000)]
    thin = report_data.thinned(points)
    assert len(thin) <= 801 and (7777, 100.0) in thin and thin == sorted(thin)
    assert report_data.thinned(points[:10]) == points[:10]


def test_smoothing_has_no_bias():
    assert all(abs(y - 3.0) < 1e-12 for _, y in report_data.smoothed([(i, 3.0) for i in range(50)], 20))


@pytest.mark.parametrize("low, high", [(0, 1), (-0.3, 7.2), (1e-6, 3e-6), (0, 123456), (5, 5)])
def test_ticks_are_round(low, high):
    ticks = report_charts.ticks(low, high, 6)
    assert 1 <= len(ticks) <= 7 and all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)
    if len(ticks) > 2:
        step = ticks[1] - ticks[0]
        assert re.fullmatch(r"[125]e[-+]\d+", f"{step:.0e}") and abs(float(f"{step:.0e}") - step) < 1e-9 * step
    texts = [report_charts.tick_text(t, ticks[1] - ticks[0] if len(ticks) > 1 else 1) for t in ticks]
    assert len(set(texts)) == len(texts)


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "octavo", "report", *map(str, arguments)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY / "python")})


def test_errors_are_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run", "rowwise", steps=3)
    (tmp_path / "none.jsonl").write_text("")
    for arguments, part in [
        ([tmp_path / "nowhere"], "no such folder"),
        ([tmp_path / "empty"], "holds no metrics.jsonl"),
        ([tmp_path / "none.jsonl"], "holds no training step"),
        ([tmp_path / "run", "--reference", "other"], "is none of the runs; name one of run"),
    ]:
        done = command(*arguments, "--output", tmp_path / "out", "--no-png")
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done
        assert done.stderr.startswith("octavo report: ") and part in done.stderr, done
    assert "index.html" in command(tmp_path / "run", "--output", tmp_path / "out", "--no-png").stdout


def test_text_of_others_is_escaped(tmp_path):
    write_run(tmp_path / "a<b>&c", "</script><script>alert(1)</script>", steps=3)
    html = report.write_report([str(tmp_path / "a<b>&c")], tmp_path / "out", png=False).read_text()
    assert "<script>alert" not in html and "a&lt;b&gt;&amp;c" in html
