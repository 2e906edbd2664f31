"""tools/plot_losses.py on made-up runs: numbers, picture, errors."""

import importlib.util
import json
import math
import pathlib
import struct

import pytest

pytest.importorskip("matplotlib")
SCRIPT = pathlib.Path(__file__).parents[2] / "tools" / "plot_losses.py"
spec = importlib.util.spec_from_file_location("plot_losses", SCRIPT)
plot_losses = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plot_losses)


def write_run(folder, recipe, flavour, losses, validation=None):
    folder.mkdir()
    lines = [{"step": i + 1, "loss": v, "lr": 1e-3, "tokens_per_second": 9.0, "seconds": 0.1,
              "grad_norm": 1.0} for i, v in enumerate(losses)]
    if validation is not None:
        lines.append({"step": len(losses), "validation_loss": validation})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps({"recipe": recipe, "flavour": flavour}))
    return folder


@pytest.fixture
def folders(tmp_path):
    base = [2 + 3 * math.exp(-i / 20) for i in range(100)]
    return [
        write_run(tmp_path / "base", "high_precision", None, base, 2.0),
        write_run(tmp_path / "half", "rowwise", "ocp", [v * 1.005 for v in base], 2.004),
        write_run(tmp_path / "fnuz", "tensorwise", "fnuz", [v * 0.99 for v in base]),
        write_run(tmp_path / "lost", "mxfp8(mx_rounding=floor)", "ocp",
                  base[:40] + [float("nan")] * 60),
    ]


def test_gaps(folders):
    base, half, fnuz, lost = (plot_losses.read_run(folder) for folder in folders)
    for width in (1, 5):
        steps, gaps = plot_losses.training_gap(half, base, width)
        assert steps == base.steps
        assert gaps == pytest.approx([0.5] * 100)
        assert plot_losses.training_gap(fnuz, base, width)[1] == pytest.approx([-1.0] * 100)
    assert plot_losses.validation_gap(half, base) == [(100, pytest.approx(0.2))]
    assert (half.label, fnuz.label) == ("rowwise", "tensorwise, FNUZ")
    assert lost.diverged_at == 41 and half.diverged_at is None


def test_smooth_is_a_centred_mean_without_holes():
    nan = math.nan
    assert plot_losses.smooth([1, 2, 6, nan, 4], 3) == [1.5, 3.0, 4.0, 5.0, 4.0]


def test_headline(folders):
    runs = [plot_losses.read_run(folder) for folder in folders]
    assert "+0.40%" in plot_losses.headline(runs, [0.4, -0.1])
    assert "follows" in plot_losses.headline(runs, [0.4, -1.0])
    assert "leaves" in plot_losses.headline(runs, [0.4, -1.1])
    assert plot_losses.headline(runs, [0.4, math.nan]).startswith("1 of 2")


@pytest.mark.parametrize("chosen, height", [([0, 1, 2, 3], 1140), ([1, 2], 720), ([0], 720)])
def test_picture(folders, tmp_path, chosen, height):
    out = tmp_path / "losses.png"
    plot_losses.main([str(out), *(str(folders[i]) for i in chosen)])
    data = out.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1500, height)


@pytest.mark.parametrize("break_it, message", [
    (lambda f: (f / "metrics.jsonl").unlink(), "metrics.jsonl is missing"),
    (lambda f: (f / "summary.json").write_text("{}"), "summary.json is not a run's summary"),
    (lambda f: (f / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n{"ste'), "line 2"),
    (lambda f: (f / "metrics.jsonl").write_text(""), "holds no losses"),
])
def test_errors_are_one_line(folders, tmp_path, break_it, message):
    break_it(folders[1])
    with pytest.raises(SystemExit) as error:
        plot_losses.main([str(tmp_path / "out.png"), *map(str, folders)])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out.png").exists()
