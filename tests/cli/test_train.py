"""Train a tiny model, resume it, look at it, use it: the path of a first hour with octavo."""

import json

import pytest
from conftest import checkpoints, good, losses, run
from safetensors import safe_open


@pytest.mark.parametrize("recipe", ["high_precision", "rowwise"])
def test_resumed_equals_uninterrupted(config, tmp_path, recipe):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    path = config(recipe=recipe, steps=10, checkpoint_every=4)
    good(run("train", "--config", path, "--run_dir", whole))
    # The second run loses all checkpoints but the one of step 4 and goes on from there.
    good(run("train", "--config", path, "--run-dir", parts))
    for name in checkpoints(parts):
        if name != "step-000004":
            for file in (parts / "checkpoints" / name).iterdir():
                file.unlink()
            (parts / "checkpoints" / name).rmdir()
    before = losses(parts)
    good(run("train", "--config", path, "--run-dir", parts, "--resume"))
    assert losses(whole) == losses(parts) == before
    weights = [
        (root / "checkpoints/step-000010/model.safetensors").read_bytes() for root in (whole, parts)
    ]
    assert weights[0] == weights[1]


def test_the_first_hour(config, tmp_path):
    run_dir = tmp_path / "run"
    result = good(run("train", "--config", config(), "--recipe", "rowwise", "--checkpoint-every=6"))
    assert "loss" in result.out
    assert sorted(losses(run_dir)) == list(range(1, 13))
    assert checkpoints(run_dir) == ["step-000006", "step-000012"]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["recipe"] == "rowwise" and summary["layers_converted"] == 7

    # The checkpoint opens with the safetensors package under Hugging Face's names.
    with safe_open(run_dir / "checkpoints/step-000012/model.safetensors", framework="pt") as file:
        assert "model.layers.0.self_attn.q_proj.weight" in file.keys()
        assert file.metadata() == {"format": "pt"}

    # eval: as trained gives the run's own number, unconverted a near one.
    trained = json.loads(good(run("eval", run_dir, "--json")).out)
    assert trained["step"] == 12 and trained["precision"].startswith("rowwise")
    assert trained["validation_loss"] == pytest.approx(summary["validation_loss"], rel=1e-6)
    plain = json.loads(good(run("eval", run_dir, "--eval-recipe", "high_precision", "--json")).out)
    assert plain["precision"] == "high_precision"
    assert plain["validation_loss"] != trained["validation_loss"]
    assert plain["validation_loss"] == pytest.approx(trained["validation_loss"], rel=0.02)
    # An older checkpoint by its own folder, and in words.
    older = good(run("eval", run_dir / "checkpoints/step-000006"))
    assert older.out.startswith("step 6  rowwise, ocp") and "nats per token" in older.out

    # generate: bytes out, equal seeds give equal texts.
    arguments = ["generate", run_dir, "--prompt", "ROMEO:", "--tokens", 40]
    first, second, other = (run(*arguments, "--seed", seed, text=False) for seed in (1, 1, 2))
    assert first.code == 0 and first.out.startswith(b"ROMEO:")
    assert len(first.out) == len("ROMEO:") + 40 + 1
    assert first.out == second.out != other.out
    greedy = [
        run(*arguments, "--temperature", 0, "--eval-recipe", "high_precision", text=False).out
        for _ in range(2)
    ]
    assert greedy[0] == greedy[1]

    # inspect: the checkpoint's own configuration.
    report = json.loads(good(run("inspect", run_dir, "--json")).out)
    assert report["recipe"] == "rowwise" and report["layers_converted"] == 7


def test_tied_head_is_stored_once_and_loads(config, tmp_path):
    good(run("train", "--config", config(tied_head=True, steps=2, recipe="tensorwise")))
    path = tmp_path / "run/checkpoints/step-000002/model.safetensors"
    with safe_open(path, framework="pt") as file:
        assert "model.embed_tokens.weight" in file.keys()
        assert "lm_head.weight" not in file.keys()
    good(run("eval", tmp_path / "run"))
    good(run("train", "--config", config(tied_head=True, steps=4), "--resume", "true"))


def test_command_line_over_file_over_preset(config, tmp_path):
    good(run("train", "--config", config(steps=3), "--steps", 2, "--hidden", 64))
    state = json.loads((tmp_path / "run/checkpoints/step-000002/state.json").read_text())
    assert state["step"] == 2
    assert state["config"]["steps"] == 2 and state["config"]["hidden"] == 64
    assert state["config"]["dim"] == 32
