"""octavo train --device cuda: every recipe learns as on the CPU; resume and eval work."""

import json
import os
import pathlib
import subprocess

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

BUILD = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build-cuda"))
COMMAND = BUILD / "apps" / "octavo" / "octavo"
ROOT = pathlib.Path(__file__).parents[2]
RECIPES = ["high_precision", "tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"]


def octavo(*arguments):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(run_dir, recipe, device, *more, preset="debug"):
    options = {"--preset": preset, "--train-data": ROOT / "examples/data/tinyshakespeare.txt",
               "--recipe": recipe, "--device": device, "--run-dir": run_dir, "--steps": 40, "--batch": 8,
               "--sequence": 64, "--validation-batches": 8}
    options |= dict(zip(more[::2], more[1::2]))
    octavo("train", *(word for option in options.items() for word in option))
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "train"]
    return losses, json.loads((run_dir / "summary.json").read_text())["validation_loss"]


@pytest.mark.parametrize("recipe", RECIPES + ["rowwise(flavour=fnuz)"])
def test_losses_are_the_cpus(tmp_path, recipe):
    gpu, gpu_validation = train(tmp_path / "gpu", recipe, "cuda")
    cpu, cpu_validation = train(tmp_path / "cpu", recipe, "cpu")
    # Same weights and data; only the order of sums differs, and FP8 turns a last bit into a step.
    assert abs(gpu[0] - cpu[0]) < 2e-3
    assert abs(gpu_validation / cpu_validation - 1) < 0.02


@pytest.mark.parametrize("recipe", ["high_precision", "rowwise", "rowwise_with_gw_hp", "blockwise",
                                    "mxfp8", "rowwise(flavour=fnuz)"])
def test_losses_with_experts_are_the_cpus(tmp_path, recipe):
    gpu, gpu_validation = train(tmp_path / "gpu", recipe, "cuda", preset="debug-moe")
    cpu, cpu_validation = train(tmp_path / "cpu", recipe, "cpu", preset="debug-moe")
    # A token on the edge between two experts can go the other way.
    assert abs(gpu[0] - cpu[0]) < 5e-3
    assert abs(gpu_validation / cpu_validation - 1) < 0.02


def test_experts_learn_as_high_precision(tmp_path):
    """Validation loss within 1% of high precision's after 200 steps of the tiny mixture of experts."""
    recipes = ["high_precision", "rowwise", "blockwise", "mxfp8", "rowwise(flavour=fnuz)",
               "blockwise(flavour=fnuz)"]
    losses = {recipe: train(tmp_path / recipe, recipe, "cuda", "--steps", 200, preset="debug-moe")[1]
              for recipe in recipes}
    print(losses)
    assert all(abs(loss / losses["high_precision"] - 1) < 0.01 for loss in losses.values()), losses


def test_experts_in_bfloat16(tmp_path):
    """LibTorch's grouped product with groups of any size, empty ones too, against the CPU's loop."""
    more = ["--dtype", "bfloat16", "--experts", 16, "--top-k", 1]
    gpu, gpu_validation = train(tmp_path / "gpu", "high_precision", "cuda", *more, preset="debug-moe")
    _, cpu_validation = train(tmp_path / "cpu", "high_precision", "cpu", *more, preset="debug-moe")
    again, _ = train(tmp_path / "again", "high_precision", "cuda", *more, preset="debug-moe")
    assert abs(gpu_validation / cpu_validation - 1) < 0.03
    # Attention's and the embedding's backward are LibTorch's, and not deterministic.
    assert max(abs(a - b) for a, b in zip(gpu, again)) < 0.05


def test_checkpointing_changes_nothing(tmp_path):
    plain, _ = train(tmp_path / "plain", "rowwise", "cuda")
    recomputed, _ = train(tmp_path / "recomputed", "rowwise", "cuda",
                          "--activation-checkpointing", "block")
    assert max(abs(a - b) for a, b in zip(plain, recomputed)) < 0.05


def test_resume_eval_and_generate(tmp_path):
    whole, _ = train(tmp_path / "whole", "rowwise", "cuda", "--checkpoint-every", 20)
    checkpoint = sorted((tmp_path / "whole" / "checkpoints").glob("step-*"))[-1]
    assert "validation" in octavo("eval", checkpoint)
    assert len(octavo("generate", checkpoint, "--prompt", "To be", "--tokens", 20)) > 20


def test_micro_batches_sum_to_the_whole_batch(tmp_path):
    """dw is added to the gradient inside the product from the second micro-batch on."""
    for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8"):
        whole, _ = train(tmp_path / f"{recipe}1", recipe, "cuda", "--batch", 8)
        parts, _ = train(tmp_path / f"{recipe}4", recipe, "cuda", "--batch", 2, "--accumulation", 4)
        # Equal data; scales of other rows and sums in another order, as on the CPU.
        assert abs(whole[0] - parts[0]) < 2e-3
        assert max(abs(a - b) for a, b in zip(whole[:10], parts[:10])) < 0.05, recipe


def test_a_weight_cache_changes_nothing(tmp_path):
    options = ("--batch", 2, "--accumulation", 4, "--steps", 10)
    without, _ = train(tmp_path / "without", "rowwise", "cuda", *options)
    cached, _ = train(tmp_path / "with", "rowwise", "cuda", *options, "--weight-cache", "true")
    assert abs(without[0] - cached[0]) < 1e-6  # later ones: LibTorch's backwards are not deterministic
    assert max(abs(a - b) for a, b in zip(without, cached)) < 0.05


def test_master_weights(tmp_path):
    """bf16 weights with masters follow fp32's run where bf16 weights alone fall behind."""
    options = ("--lr", 5e-5, "--weight-decay", 0, "--steps", 60)
    runs = {name: train(tmp_path / name, "rowwise", "cuda", *options, *more)[1]
            for name, more in {"fp32": (), "masters": ("--dtype", "bfloat16", "--master-weights", "true"),
                               "bf16": ("--dtype", "bfloat16")}.items()}
    assert runs["masters"] < runs["bf16"] and abs(runs["masters"] - runs["fp32"]) < 0.02, runs
    resumed, _ = train(tmp_path / "masters", "rowwise", "cuda", *options, "--dtype", "bfloat16",
                       "--master-weights", "true", "--steps", 62, "--resume", "true")
    assert len(resumed) == 62 and resumed[-1] < resumed[0]


def test_memory_is_the_gpus(tmp_path):
    train(tmp_path / "run", "rowwise", "cuda")
    peak = json.loads((tmp_path / "run" / "summary.json").read_text())["peak_memory"]
    # The debug model's parameters, gradients and moments, and no CUDA context of a process.
    assert 2**20 < peak < 2**28
