"""gemm_plans.txt: a run writes its algorithms, a resumed one and --plan read them, others are refused."""

import os
import pathlib
import subprocess

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

BUILD = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build-cuda"))
COMMAND = BUILD / "apps" / "octavo" / "octavo"
ROOT = pathlib.Path(__file__).parents[2]


def train(run_dir, *more):
    return subprocess.run(
        [COMMAND, "train", "--preset", "debug", "--device", "cuda", "--recipe", "rowwise",
         "--train-data", ROOT / "examples/data/tinyshakespeare.txt", "--run-dir", run_dir,
         "--batch", "4", "--sequence", "64", "--validation-batches", "2", *map(str, more)],
        capture_output=True, text=True)


def good(done):
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def test_plans_are_written_and_read(tmp_path):
    first, other = tmp_path / "first", tmp_path / "other"
    assert "plan  " not in good(train(first, "--steps", 4, "--checkpoint-every", 2))
    plans = (first / "gemm_plans.txt").read_text()
    lines = plans.splitlines()
    assert lines[0].startswith("octavo gemm plans 2, cublaslt ") and torch.cuda.get_device_name() in lines[0]
    assert len(lines) > 5  # y, dx and dw of several shapes

    # The same shapes again: read, used, nothing chosen anew.
    out = good(train(first, "--steps", 6, "--resume"))
    assert f"plan        {len(lines) - 1} algorithms from {first / 'gemm_plans.txt'}" in out
    assert (first / "gemm_plans.txt").read_text() == plans
    out = good(train(other, "--steps", 2, "--plan", first / "gemm_plans.txt"))
    assert f"{len(lines) - 1} algorithms from" in out
    assert (other / "gemm_plans.txt").read_text() == plans


def test_plans_that_do_not_fit_are_said(tmp_path):
    run_dir = tmp_path / "run"
    good(train(run_dir, "--steps", 2))
    path = run_dir / "gemm_plans.txt"
    plans = path.read_text()
    for changed, part in [
        (plans.replace("cublaslt ", "cublaslt 9", 1), "expected the first line"),
        (plans[:-3] + "77\n", "is no plan or was changed"),
    ]:
        path.write_text(changed)
        refused = train(tmp_path / "other", "--steps", 2, "--plan", path)
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1
        assert str(path) in refused.stderr and part in refused.stderr
        out = good(train(run_dir, "--steps", 2, "--resume"))
        assert "plan        refused, algorithms are chosen anew" in out and part in out
    assert path.read_text().splitlines()[0] == plans.splitlines()[0]  # written anew
    missing = train(tmp_path / "other", "--steps", 2, "--plan", tmp_path / "none.txt")
    assert missing.returncode == 1 and "none.txt cannot be read" in missing.stderr


def test_the_heuristic_measures_nothing(tmp_path):
    """Its plans are the first proposals, the same in every process."""
    texts = []
    for name in ("a", "b"):
        good(train(tmp_path / name, "--steps", 2, "--gemm-tuning", "heuristic"))
        texts.append((tmp_path / name / "gemm_plans.txt").read_text())
    assert texts[0] == texts[1]
