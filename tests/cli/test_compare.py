"""octavo compare: the table's figures for others to read, runs that are there already, failures."""

import json
import shutil

import pytest
from conftest import checkpoints, good, losses, run, user_error

RECIPES = ["--recipes", "tensorwise"]


def test_the_table_and_the_summary(config, tmp_path):
    result = good(run("compare", "--config", config(steps=4), "--recipes", "tensorwise,mxfp8,tensorwise:fnuz"))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert [(row["recipe"], row["flavour"]) for row in summary] == [
        ("high_precision", "none"),
        ("tensorwise", "ocp"),
        ("mxfp8", "ocp"),
        ("tensorwise", "fnuz"),
    ]
    base = summary[0]
    assert base["layers_converted"] == 0 and base["gap_percent"] == 0
    for row in summary:
        assert list(row) == [
            "recipe",
            "flavour",
            "layers_converted",
            "validation_loss",
            "gap_percent",
            "seconds_per_step",
        ]
        assert row["seconds_per_step"] > 0
        expected = 100 * (row["validation_loss"] / base["validation_loss"] - 1)
        assert row["gap_percent"] == pytest.approx(expected, abs=1e-9)
    assert all(row["layers_converted"] == 7 for row in summary[1:])
    # OCP and FNUZ are different runs, not one printed twice. (Rowwise would not show it: powers of
    # two and three mantissa bits in both, so the flavours differ in subnormals only.)
    assert summary[1]["validation_loss"] != summary[3]["validation_loss"]
    table = result.out[result.out.index("validation loss  gap") :]
    assert "7 of 8" in table and "fnuz" in table and "flavour=" not in table
    # Each run says what it computes with, in the same words.
    assert "recipe      high_precision; products high precision (float32)" in result.out
    assert (
        "recipe      tensorwise, fnuz; products emulated (reference backend); fast accumulation forward"
        in result.out
    )
    assert "mxfp8, ocp; products emulated (reference backend); fast accumulation none" in result.out
    assert "native" not in result.out


def test_recipes_that_are_wrong(config):
    user_error(
        run("compare", "--config", config(), "--recipes", "rowwise,rowwise"), "rowwise", "twice"
    )
    user_error(run("compare", "--config", config(), "--recipes", "rowise"), "rowise", "'rowwise'")
    # Its list says which recipes; one more would be left out without a word.
    result = run("compare", "--config", config(), "--recipes", "rowwise", "--recipe", "mxfp8")
    user_error(result, "--recipe:", "mxfp8", "--recipes")
    user_error(run("compare", "--config", config(), "--resume-step", 2), "resume_step", "octavo train")


def test_resume_takes_finished_runs_as_they_are(config, tmp_path):
    run_dir = tmp_path / "run"
    compare = ["compare", "--config", config(steps=3), *RECIPES]
    good(run(*compare))
    summary = (run_dir / "summary.json").read_text()
    metrics = losses(run_dir / "tensorwise")
    user_error(run(*compare), "holds a run already", "--resume", "--overwrite")

    result = good(run(*compare, "--resume"))
    assert result.out.count("finished before") == 2 and "tok/s" not in result.out
    assert (run_dir / "summary.json").read_text() == summary
    assert losses(run_dir / "tensorwise") == metrics

    # Their time per step was measured with one thread, their losses with these settings.
    user_error(
        run(*compare, "--resume", "--threads", 2), "with 1 threads, asked for 2", "high_precision"
    )
    user_error(run(*compare, "--resume", "--lr", 0.01), "lr 0.003, asked for 0.01", "--overwrite")
    assert (run_dir / "summary.json").read_text() == summary

    # Killed between the last checkpoint and the summary: what it says helps.
    (run_dir / "tensorwise/summary.json").unlink()
    user_error(run(*compare, "--resume"), "tensorwise", "no summary", "remove", "resume again")
    shutil.rmtree(run_dir / "tensorwise")
    result = good(run(*compare, "--resume"))
    assert result.out.count("finished before") == 1
    assert losses(run_dir / "tensorwise") == metrics


def test_overwrite_replaces_one_run_after_the_other(config, tmp_path):
    run_dir = tmp_path / "run"
    path = config(steps=3)
    good(run("compare", "--config", path, *RECIPES))
    (run_dir / "losses.png").write_bytes(b"of these runs")
    (run_dir / "notes.txt").write_text("the user's")
    before = losses(run_dir / "tensorwise")
    # Nothing is removed for data that does not open.
    user_error(run("compare", "--config", path, *RECIPES, "--overwrite", "--train-data", "/no.txt"), "/no.txt")
    assert (run_dir / "summary.json").exists() and (run_dir / "losses.png").exists()

    # The first new run fails: the table is no longer that of what is there, the second run stays.
    diverging = ["--lr", "1e13", "--warmup-steps", 0, "--steps", 1]
    result = run("compare", "--config", path, *RECIPES, "--overwrite", *diverging)
    user_error(result, "validation loss")
    assert not (run_dir / "summary.json").exists() and not (run_dir / "losses.png").exists()
    assert checkpoints(run_dir / "high_precision") == ["step-000001"]
    assert losses(run_dir / "tensorwise") == before
    assert checkpoints(run_dir / "tensorwise") == ["step-000003"]

    good(run("compare", "--config", path, *RECIPES, "--overwrite", "--steps", 2))
    assert checkpoints(run_dir / "tensorwise") == ["step-000002"]
    assert len(json.loads((run_dir / "summary.json").read_text())) == 2
    assert (run_dir / "notes.txt").read_text() == "the user's"


def test_a_folder_holds_a_run_or_a_comparison(config, tmp_path):
    path = config(steps=1)
    good(run("compare", "--config", path, *RECIPES))
    table = (tmp_path / "run/summary.json").read_text()
    for option in [[], ["--overwrite"], ["--resume"]]:
        user_error(run("train", "--config", path, *option), "run_dir", "comparison", "--run-dir")
    assert (tmp_path / "run/summary.json").read_text() == table
    single = ["--run-dir", tmp_path / "single"]
    good(run("train", "--config", path, *single))
    for option in [[], ["--overwrite"], ["--resume"]]:
        result = run("compare", "--config", path, *RECIPES, *single, *option)
        user_error(result, "run_dir", "of one recipe", "--run-dir")
    assert checkpoints(tmp_path / "single") == ["step-000001"]
