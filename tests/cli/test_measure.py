"""octavo bench and octavo baseline: what measures a build."""

import json
import shutil

import pytest
from conftest import REPOSITORY, good, run, user_error

BASELINES = REPOSITORY / "tests/loss_baselines"


SHAPES = {"quantize": "128x128", "gemm": "16x32x48", "linear": "16x32x48", "moe": "48x32x64x3"}


def bench(name, *arguments):
    sizes = {"--shapes": SHAPES[name], "--repetitions": 1}
    given = [part for key, size in sizes.items() if key not in arguments for part in (key, size)]
    return run("bench", name, *given, *arguments)


def report_of(name, *arguments):
    """The JSON on standard output, its head checked."""
    report = json.loads(good(bench(name, "--json", "--threads", 1, *arguments)).out)
    assert (report["benchmark"], report["device"], report["threads"]) == (name, "cpu", 1)
    assert report["product"] and report["repetitions"] == 1 and report["rates"]["copy_gb_per_s"] > 0
    for row in report["results"]:
        assert row["shape"] in SHAPES[name].split(",")
        assert all(value > 0 for value in row.values() if not isinstance(value, str)), row
    return report


def test_bench_quantize_prints_json():
    report = report_of("quantize")
    assert report["dtype"] == "bf16" and report["target"]
    names = [row["layouts"] for row in report["results"]]
    assert len(names) == len(set(names)) == 22
    assert "rowwise, both" in names and "mx1x32, transposed" in names
    assert list(report["results"][0]) == [
        "shape",
        "layouts",
        "microseconds",
        "ns_per_element",
        "gb_per_s",
        "copy_gb_per_s",
        "of_copy",
        "floor_microseconds",
        "of_floor",
        "eager_ns_per_element",
        "eager_ratio",
    ]
    for row in report["results"]:
        assert row["ns_per_element"] == pytest.approx(row["microseconds"] * 1e3 / 128**2)
        # At least x in bf16 and one layout of bytes, at the copy's rate.
        floor = row["floor_microseconds"] * 1e-6
        assert floor >= 3 * 128**2 / (report["rates"]["copy_gb_per_s"] * 1e9)
        assert row["of_floor"] == pytest.approx(floor * 1e6 / row["microseconds"])


def test_bench_gemm_prints_json():
    report = report_of("gemm")
    rows = report["results"]
    assert [(row["operands"], row["fast_accumulation"]) for row in rows] == [
        ("tensorwise . tensorwise", "off"),
        ("tensorwise . tensorwise", "on"),
        ("rowwise . rowwise", "off"),
        ("rowwise . rowwise", "on"),
        ("1x128 . 128x128", "none"),
        ("1x128 . 1x128", "none"),
        ("mx1x32 . mx1x32", "none"),
    ]
    for row in rows:
        assert row["backend"] == "emulated (reference backend)"
        assert row["tflops"] == pytest.approx(2e-9 * 16 * 32 * 48 / row["milliseconds"])
        assert row["bf16_ratio"] == pytest.approx(row["bf16_milliseconds"] / row["milliseconds"])
        floor = 2e-9 * 16 * 32 * 48 / report["rates"]["fp8_tflops"]
        assert row["floor_milliseconds"] == pytest.approx(floor)


def bench_step(*arguments, preset="debug"):
    tiny = ("--batch", 1, "--sequence", 16, "--rounds", 1, "--timed-steps", 1, "--warm-up", 1, "--threads", 1)
    return run("bench", "step", "--preset", preset, *tiny, *arguments)


def test_bench_step_prints_json():
    report = json.loads(good(bench_step("--recipes", "rowwise,blockwise", "--micro-batches", 2, "--json")).out)
    assert report["model"]["preset"] == "debug" and report["tokens_per_step"] == 2 * 16
    assert report["config"]["dtype"] == "bfloat16"
    assert [row["recipe"] for row in report["results"]] == ["high_precision", "rowwise", "blockwise"]
    base = report["results"][0]["milliseconds"]
    for row in report["results"]:
        assert row["tokens_per_second"] == pytest.approx(2 * 16e3 / row["milliseconds"])
        assert row["high_precision_ratio"] == pytest.approx(base / row["milliseconds"])
        assert row["of_floor"] == pytest.approx(row["floor_milliseconds"] / row["milliseconds"])
        assert row["mfu_bf16_peak"] is None and row["mfu_mixed_peak"] is None  # of a CPU nobody says
    floors = [row["floor_milliseconds"] for row in report["results"]]
    assert floors[0] != floors[1] == floors[2]  # both FP8 recipes write two layouts of each operand


def test_bench_step_breaks_a_step_down():
    report = json.loads(good(bench_step("--recipes", "rowwise", "--breakdown", "--json")).out)
    kinds = ["products", "quantisation", "attention", "producers", "optimiser", "rest", "idle"]
    for row in report["results"]:
        assert sum(row[kind] for kind in kinds) == pytest.approx(1, abs=0.02), row
        assert row["products"] > 0 and row["attention"] > 0 and row["optimiser"] > 0
        kernels = report["kernels"][row["recipe"]]
        assert row["launches"] == sum(kernel["launches"] for kernel in kernels)
        calls = {kernel["name"]: kernel["launches"] for kernel in kernels}
        assert calls["octavo::adamw"] == 1
        fp8 = [name for name in calls if name.startswith("octavo::float8_")]
        assert bool(fp8) == (row is not report["results"][0]), calls


def test_bench_step_runs_each_recipe_unfused_too():
    report = json.loads(good(bench_step("--recipes", "rowwise", "--unfused", "--breakdown", "--json")).out)
    assert [row["recipe"] for row in report["results"]] == ["high_precision", "rowwise", "rowwise, unfused"]
    fused, unfused = ({k["name"]: k["launches"] for k in report["kernels"][r]} for r in ["rowwise", "rowwise, unfused"])
    # Its forward takes operands that are quantised already, and then no operator is called.
    assert "octavo::float8_swiglu_mlp_backward" in fused and "octavo::float8_swiglu_mlp_backward" not in unfused
    assert all(row["overhead_recovered"] is None for row in report["results"])  # a CPU's profile does not tell


def test_bench_step_says_what_a_model_cannot_take():
    done = good(bench_step("--recipes", "tensorwise", preset="debug-moe"))
    line = next(line for line in done.out.splitlines() if line.startswith("tensorwise"))
    assert "skipped" in line and "rowwise" in line
    user_error(bench_step("--recipes", "rowise"), "rowise", "rowwise")
    user_error(bench_step("--layers", 0), "layers")
    user_error(bench_step("--cuda-graph"), "cuda_graph", "false where device is cpu")


def test_bench_linear_prints_json():
    report = report_of("linear", "--recipes", "rowwise, tensorwise(flavour=fnuz,fast_accumulation=all)")
    fnuz = "tensorwise(flavour=fnuz,fast_accumulation=all)"
    assert [(row["recipe"], row["fast_accumulation"]) for row in report["results"]] == [
        ("rowwise", "forward"),
        (fnuz, "all"),
    ]
    assert report["products"] == {"rowwise": "emulated (reference backend)", fnuz: "emulated (reference backend)"}
    for row in report["results"]:
        assert row["tflops"] == pytest.approx(6e-9 * 16 * 32 * 48 / row["milliseconds"])
        # Each operand read in bf16 once and written in two layouts; three products in FP8.
        moved = 4 * (16 * 32 + 48 * 32 + 16 * 48) / (report["rates"]["copy_gb_per_s"] * 1e6)
        multiplied = 6e-9 * 16 * 32 * 48 / report["rates"]["fp8_tflops"]
        assert row["floor_milliseconds"] == pytest.approx(moved + multiplied)


def test_bench_linear_has_every_recipe_and_counts_what_stays_in_bf16():
    report = report_of("linear")
    rows = {row["recipe"]: row for row in report["results"]}
    assert list(rows) == ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"]
    assert report["products"]["rowwise_with_gw_hp"].endswith("dw high precision")
    # dw in BF16: x and dy have one layout less.
    moved = (3 * 16 * 32 + 4 * 48 * 32 + 3 * 16 * 48) / (report["rates"]["copy_gb_per_s"] * 1e6)
    product = 2e-9 * 16 * 32 * 48
    multiplied = 2 * product / report["rates"]["fp8_tflops"] + product / report["rates"]["bf16_tflops"]
    floor = rows["rowwise_with_gw_hp"]["floor_milliseconds"]
    assert floor == pytest.approx(moved + multiplied)


def test_bench_moe_prints_json():
    report = report_of("moe", "--recipes", "rowwise,rowwise_with_gw_hp", "--micro-batches", 2)
    assert (report["groups"], report["micro_batches"]) == ("uneven", 2)
    rows = report["results"]
    assert [(row["recipe"], row["fast_accumulation"]) for row in rows] == [
        ("rowwise", "all"),
        ("rowwise_with_gw_hp", "all"),
    ]
    assert report["products"]["rowwise"] == "emulated (reference backend)"
    m, d, f, e = 48, 32, 64, 3
    for row in rows:
        high = row["recipe"] != "rowwise"
        assert row["tflops"] == pytest.approx(18e-9 * m * d * f / row["milliseconds"])
        assert row["bf16_forward_ratio"] == pytest.approx(
            row["bf16_forward_milliseconds"] / row["forward_milliseconds"])
        layouts = 1 if high else 2  # of x and dy; weights have two
        moved = (2 + layouts) * 2 * m * d + 4 * 3 * e * f * d + 10 * m * f + layouts * 3 * m * f
        product = 6e-9 * m * d * f
        multiplied = (2 if high else 3) * product / report["rates"]["fp8_tflops"]
        multiplied += high * product / report["rates"]["bf16_tflops"]
        floor = moved / (report["rates"]["copy_gb_per_s"] * 1e6) + multiplied
        assert row["floor_milliseconds"] == pytest.approx(floor)


def test_bench_moe_breakdown():
    report = report_of("moe", "--recipe", "mxfp8", "--even", "--breakdown")
    assert report["groups"] == "even"
    kernels = report["breakdown"]["48x32x64x3"]
    assert list(kernels) == ["BF16", "mxfp8"]
    names = {kernel["name"]: kernel for kernel in kernels["mxfp8"]}
    # Forward and backward, by the operators of one fused network or of two linears.
    for way in ("forward", "backward"):
        assert sum(kernel["launches"] for name, kernel in names.items()
                   if name.startswith("octavo::float8_") and name.endswith(way)) in (1, 2)
    assert all(kernel["microseconds"] >= 0 and kernel["launches"] > 0 for kernel in names.values())
    times = [kernel["microseconds"] for kernel in kernels["mxfp8"]]
    assert times == sorted(times, reverse=True)
    assert not any("octavo::float8" in kernel["name"] for kernel in kernels["BF16"])
    out = good(bench("moe", "--recipe", "rowwise", "--breakdown")).out
    assert "rowwise: products emulated (reference backend), fast accumulation all" in out
    assert " x octavo::float8_" in out and "launches" in out


@pytest.mark.parametrize(
    "name, line",
    [
        ("quantize", ["128x128", "128x128, rows"]),
        ("gemm", ["16x32x48", "mx1x32 . mx1x32", "emulated (reference backend)", "none"]),
        ("linear", ["16x32x48", "mxfp8", "none"]),
        ("moe", ["48x32x64x3", "mxfp8", "none"]),
    ],
)
def test_bench_prints_a_table(name, line):
    only = {"quantize": ["--only", "128x128, rows"], "gemm": ["--only", "mx"], "linear": ["--recipe", "mxfp8"]}
    only["moe"] = only["linear"]
    result = good(bench(name, *only[name]))
    lines = result.out.splitlines()
    assert lines[0].startswith(f"bench {name} on cpu (")
    assert any(text.startswith("copy ") for text in lines)
    words = [word for word in lines[-1].split("  ") if word]
    assert [word.strip() for word in words[: len(line)]] == line
    # One column a key, under its heading.
    assert len(lines[-1]) == len(lines[-2]) and lines[-2].split()[0] == "shape"


def test_bench_writes_a_file_and_prints_the_table(tmp_path):
    path = tmp_path / "report.json"
    result = good(bench("gemm", "--only", "1x128 . 1x128", "--json", path))
    [row] = json.loads(path.read_text())["results"]
    assert result.out.splitlines()[-1].startswith("16x32x48") and row["operands"] == "1x128 . 1x128"
    user_error(bench("gemm", "--json", tmp_path / "none/report.json"), "none/report.json")
    # An error leaves no half report.
    user_error(bench("quantize", "--json", tmp_path / "other.json", "--shapes", "100x100"), "100x100")
    assert not (tmp_path / "other.json").exists()


def test_bench_quantize_takes_other_types():
    result = good(bench("quantize", "--only", "128x128, rows", "--dtype", "fp32"))
    assert "x in fp32" in result.out


@pytest.mark.parametrize(
    "name, options, parts",
    [
        ("quantize", ["--only", "rowise"], ["--only", "rowise", '"rowwise, both"', '"mx1x32, rows"']),
        ("quantize", ["--dtype", "fp8"], ["--dtype", "bf16, fp16 or fp32", "fp8"]),
        ("quantize", ["--shapes", "100x128"], ["--shapes", "multiples of 128", "100x128"]),
        ("quantize", ["--shapes", "128x128x128"], ["--shapes", "MxK", "128x128x128"]),
        ("gemm", ["--shapes", "128x128"], ["--shapes", "MxKxN", "128x128"]),
        ("gemm", ["--shapes", "16x32x"], ["--shapes", "MxKxN", "16x32x"]),
        ("linear", ["--shapes", "16x0x16"], ["--shapes", "at least 1", "16x0x16"]),
        ("linear", ["--shapes", "16x16x99999999999"], ["--shapes", "99999999999"]),
        ("gemm", ["--only", "mxfp8"], ["--only", "mxfp8", '"1x128 . 128x128"']),
        ("linear", ["--recipes", "rowwise,mxpf8"], ["mxpf8", "'mxfp8'"]),
        ("moe", ["--shapes", "16x32x48"], ["--shapes", "MxDxFxE", "16x32x48"]),
        ("moe", ["--recipe", "tensorwise"], ["tensorwise", "rowwise"]),
    ],
)
def test_bench_errors(name, options, parts):
    user_error(bench(name, *options), *parts)


@pytest.mark.parametrize("name", SHAPES)
def test_bench_on_a_device_that_is_not_there(name):
    """No GPU here; a build of the preset cuda says that none is visible, one of cpu what to build."""
    if bench("gemm", "--only", "mx", "--device", "cuda").code == 0:
        pytest.skip("this machine has a GPU")
    user_error(bench(name, "--device", "cuda"), "device: ", "cuda", "set device to cpu")
    user_error(bench(name, "--device", "tpu"), "device: expected cpu or cuda, got 'tpu'")


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
