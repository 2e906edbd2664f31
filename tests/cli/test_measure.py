"""octavo bench and octavo baseline: what measures a build."""

import json
import shutil

import pytest
from conftest import REPOSITORY, good, run, user_error

BASELINES = REPOSITORY / "tests/loss_baselines"


def bench(*arguments):
    sizes = {"--rows": 128, "--columns": 128, "--repetitions": 1}
    given = [part for name, size in sizes.items() if name not in arguments for part in (name, size)]
    return run("bench", "quantize", *given, *arguments)


def test_bench_quantize_prints_json():
    report = json.loads(good(bench("--json", "--threads", 1)).out)
    assert (report["benchmark"], report["rows"], report["columns"]) == ("quantize", 128, 128)
    assert report["threads"] == 1 and report["dtype"] == "bf16"
    names = [row["layouts"] for row in report["results"]]
    assert len(names) == len(set(names)) == 22
    assert "rowwise, both" in names and "mx1x32, transposed" in names
    for row in report["results"]:
        assert row["ns_per_element"] > 0 and row["eager_ratio"] > 0 and row["of_copy"] > 0


def test_bench_quantize_prints_a_table():
    result = good(bench("--only", "128x128, rows", "--dtype", "fp32"))
    assert result.out.splitlines()[-1].startswith("128x128, rows")
    assert len(result.out.splitlines()) == 3


@pytest.mark.parametrize(
    "options, parts",
    [
        (["--only", "rowise"], ["--only", "rowise", '"rowwise, both"', '"mx1x32, rows"']),
        (["--dtype", "fp8"], ["--dtype", "bf16, fp16 or fp32", "fp8"]),
        (["--rows", 100], ["--rows", "multiple of 128", "100"]),
        (["--columns", 0], ["--columns", "multiple of 128"]),
    ],
)
def test_bench_quantize_errors(options, parts):
    user_error(bench(*options), *parts)


def test_baseline_check(tmp_path):
    check = ["baseline", "check", "--only", "high_precision"]
    result = good(run(*check, cwd=REPOSITORY))
    assert result.out.startswith("ok") and "high_precision" in result.out

    # The last loss is another: more than any band, so that every machine finds it.
    shutil.copytree(BASELINES, tmp_path / "baselines")
    path = tmp_path / "baselines/high_precision.txt"
    lines = path.read_text().splitlines()
    lines[-1] = (float.fromhex(lines[-1]) * 1.5).hex()
    path.write_text("\n".join(lines) + "\n")
    [steps] = [line.split()[1] for line in lines if line.startswith("losses ")]
    result = run(*check, "--folder", tmp_path / "baselines", cwd=REPOSITORY)
    user_error(result, "losses differ", "high_precision", "octavo baseline write")
    assert result.out.startswith("FAILED") and f"first at step {steps}" in result.out

    user_error(run("baseline", "check", "--only", "rowwise", cwd=REPOSITORY), "rowwise", "known")
    user_error(run(*check, "--folder", tmp_path, cwd=REPOSITORY), "cannot read", "baseline write")
