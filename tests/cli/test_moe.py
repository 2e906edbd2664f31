"""A model with experts through the command: train, eval, generate, inspect, compare."""

import json

import pytest
from conftest import good, losses, run, user_error
from safetensors import safe_open

MOE = {"preset": "debug-moe", "layers": 2, "experts": 4, "expert_hidden": 32, "shared_hidden": 16}


def test_the_first_hour(config, tmp_path):
    run_dir = tmp_path / "run"
    result = good(run("train", "--config", config(**MOE), "--recipe", "mxfp8"))
    assert "experts     4 in 1 layers, F 32, 2 of a token and a shared one, F 16" in result.out
    assert sorted(losses(run_dir)) == list(range(1, 13))
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(row["expert_load"] >= 1 and "aux_loss" in row for row in lines if row["event"] == "train")
    summary = json.loads((run_dir / "summary.json").read_text())

    path = run_dir / "checkpoints/step-000012/model.safetensors"
    with safe_open(path, framework="pt") as file:
        prefix = "model.layers.1.moe."
        assert file.get_slice(prefix + "experts.gate_up_proj").get_shape() == [4, 64, 32]
        assert file.get_slice(prefix + "experts.down_proj").get_shape() == [4, 32, 32]
        assert file.get_tensor(prefix + "router.expert_bias").abs().max() > 0

    trained = json.loads(good(run("eval", run_dir, "--json")).out)
    assert trained["validation_loss"] == pytest.approx(summary["validation_loss"], rel=1e-6)
    plain = json.loads(good(run("eval", run_dir, "--eval-recipe", "high_precision", "--json")).out)
    assert plain["validation_loss"] == pytest.approx(trained["validation_loss"], rel=0.02)
    assert plain["validation_loss"] != trained["validation_loss"]
    texts = [run("generate", run_dir, "--prompt", "ROMEO:", "--tokens", 20, "--seed", seed, text=False)
             for seed in (1, 1, 2)]
    assert all(text.code == 0 for text in texts)
    assert texts[0].out == texts[1].out != texts[2].out

    report = json.loads(good(run("inspect", run_dir, "--json")).out)
    kinds = {layer["name"]: layer for layer in report["layers"]}
    experts = kinds["model.layers.1.moe.experts"]
    assert experts["fp8"] and experts["shape"] == [4, 32, 32] and experts["parameters"] == 4 * 3 * 32 * 32
    gate = kinds["model.layers.1.moe.router.gate"]
    assert not gate["fp8"] and "always" in gate["reason"]
    assert report["parameters"]["total"] - report["parameters"]["active"] == 2 * 3 * 32 * 32
    assert report["layers_converted"] == summary["layers_converted"]
    assert len(report["expert_products"]) == 3


@pytest.mark.parametrize("preset, total, active", [
    ("llama4-debug", 2.95e9, 2.70e9), ("deepseek-moe-16b", 16.37e9, 2.83e9),
    ("deepseek-v3-shape", 7.08e9, 3.91e9)])
def test_presets_of_published_models(preset, total, active):
    report = json.loads(good(run("inspect", preset, "--recipe", "rowwise", "--json")).out)
    assert report["parameters"]["total"] == pytest.approx(total, rel=0.01)
    assert report["parameters"]["active"] == pytest.approx(active, rel=0.01)
    text = good(run("inspect", preset, "--recipe", "rowwise", "--architecture", "sm_90")).out
    assert "linears and experts in FP8" in text and "active" in text and ", experts: e4m3fn" in text
    assert "fast accumulation forward (experts all)" in text


def test_comparing_takes_the_experts_recipes(config, tmp_path):
    good(run("compare", "--config", config(**MOE, steps=2)))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert [(row["recipe"], row["flavour"]) for row in summary] == [
        ("high_precision", "none"), ("rowwise", "ocp"), ("rowwise_with_gw_hp", "ocp"),
        ("blockwise", "ocp"), ("mxfp8", "ocp"), ("rowwise", "fnuz"), ("blockwise", "fnuz")]
    assert len({row["layers_converted"] for row in summary[1:]}) == 1
    assert len({row["validation_loss"] for row in summary}) > 4


def test_dense_and_experts_apart(config, tmp_path):
    path = config(**MOE, steps=1, recipe="rowwise")
    counts = []
    for name, options in [("dense", ["--filter-fqns", "lm_head,experts"]),
                          ("experts", ["--select-fqns", "experts"]), ("both", [])]:
        good(run("train", "--config", path, "--run-dir", tmp_path / name, *options))
        counts.append(json.loads((tmp_path / name / "summary.json").read_text())["layers_converted"])
    assert counts[0] + counts[1] == counts[2] and counts[1] == 1
    user_error(run("train", "--config", path, "--run-dir", tmp_path / "no", "--recipe", "tensorwise"),
               "moe.experts", "rowwise")
    user_error(run("train", "--config", path, "--top-k", 5), "top_k is 5", "experts")
