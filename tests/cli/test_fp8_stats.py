"""--fp8-stats N: FP8 health in metrics.jsonl, and training that does not notice."""

import json

import pytest
from conftest import good, losses, run

LINEARS = [f"model.layers.0.{part}_proj" for part in (
    "self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")]


def health(run_dir):
    """Step -> the layers' figures."""
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["layers"] for row in rows if row["event"] == "fp8"}


@pytest.mark.parametrize("recipe", ["rowwise", "mxfp8"])
def test_samples_do_not_change_training(config, tmp_path, recipe):
    path = config(recipe=recipe, accumulation=2)
    good(run("train", "--config", path, "--run-dir", tmp_path / "plain"))
    good(run("train", "--config", path, "--run-dir", tmp_path / "sampled", "--fp8-stats", 5))
    assert health(tmp_path / "plain") == {}
    sampled = health(tmp_path / "sampled")
    assert sorted(sampled) == [1, 5, 10]
    for layers in sampled.values():
        assert sorted(layers) == sorted(LINEARS)
        for operands in layers.values():
            assert sorted(operands) == ["dy", "w", "x"]
            for figures in operands.values():
                assert 0 <= figures["flushed"] < 0.2 and 0 <= figures["saturated"] < 0.2
                assert 20 < figures["snr_db"] < 50  # e4m3: errors of at most 1/16
    assert losses(tmp_path / "plain") == losses(tmp_path / "sampled")
    weights = [(tmp_path / name / "checkpoints/step-000012/model.safetensors").read_bytes()
               for name in ("plain", "sampled")]
    assert weights[0] == weights[1]


def test_high_precision_has_nothing_to_sample(config, tmp_path):
    good(run("train", "--config", config(), "--fp8-stats", 2))
    assert health(tmp_path / "run") == {}


def test_every_train_line_has_the_memory(config, tmp_path):
    good(run("train", "--config", config(steps=2)))
    rows = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert all(row["memory"] > 1 << 20 for row in rows if row["event"] == "train")
