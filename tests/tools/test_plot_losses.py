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
    lines = [{"event": "start", "step": 0, "recipe": recipe, "config": {}}]
    lines += [{"event": "train", "step": i + 1, "loss": v, "lr": 1e-3, "gradient_norm": 1.0,
               "seconds": 0.1, "tokens_per_second": 9.0} for i, v in enumerate(losses)]
    lines.append({"event": "checkpoint", "step": len(losses)})
    if validation is not None:
        lines.append({"event": "validation", "step": len(losses), "loss": validation})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps({"recipe": recipe, "flavour": flavour}))
    return folder


@pytest.fixture
def folders(tmp_path):
    base = [2 + 3 * math.exp(-i / 20) for i in range(100)]
    return [
        write_run(tmp_path / "base", "high_precision", "none", base, 2.0),
        write_run(tmp_path / "half", "rowwise", "ocp", [v * 1.005 for v in base], 2.004),
        write_run(tmp_path / "fnuz", "tensorwise(flavour=fnuz)", "fnuz", [v * 0.99 for v in base]),
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
    assert [run.label for run in (base, half, fnuz, lost)] == [
        "high_precision", "rowwise", "tensorwise, FNUZ", "mxfp8\n(mx_rounding=floor)"]
    assert lost.diverged_at == 41 and half.diverged_at is None


def test_smooth_is_a_centred_mean_without_holes():
    nan = math.nan
    assert plot_losses.smooth([1, 2, 6, nan, 4], 3) == [1.5, 3.0, 4.0, 5.0, 4.0]


def test_after_a_resume_the_later_line_of_a_step_holds(folders):
    with open(folders[1] / "metrics.jsonl", "a") as metrics:
        metrics.write('{"event": "resume", "step": 98}\n{"event": "train", "step": 99, "loss": 7}\n')
    run = plot_losses.read_run(folders[1])
    assert run.steps == list(range(1, 101)) and run.losses[98] == 7.0


def test_a_comparison_stands_for_its_finished_runs(folders, tmp_path, capsys):
    (tmp_path / "summary.json").write_text("[]")
    (folders[2] / "summary.json").unlink()
    assert plot_losses.run_folders(tmp_path) == sorted(
        folder for folder in folders if folder != folders[2])
    assert str(folders[2]) in capsys.readouterr().err
    assert plot_losses.run_folders(folders[0]) == [folders[0]]


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
    (lambda f: (f / "metrics.jsonl").unlink(), "half holds no finished run"),
    (lambda f: (f / "summary.json").write_text("{}"), "summary.json is not a run's summary"),
    (lambda f: (f / "metrics.jsonl").write_text('{"event": "start"}\n{"eve'), "line 2"),
    (lambda f: (f / "metrics.jsonl").write_text(""), "holds no losses"),
])
def test_errors_are_one_line(folders, tmp_path, break_it, message):
    break_it(folders[1])
    with pytest.raises(SystemExit) as error:
        plot_losses.main([str(tmp_path / "out.png"), *map(str, folders)])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out.png").exists()
