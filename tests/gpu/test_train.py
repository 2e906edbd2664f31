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
    octavo("train", "--preset", preset, "--train-data", ROOT / "examples/data/tinyshakespeare.txt",
           "--recipe", recipe, "--device", device, "--run-dir", run_dir, "--steps", 40, "--batch", 8,
           "--sequence", 64, "--validation-batches", 8, *more)
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
                          "--activation-checkpointing", "true")
    assert max(abs(a - b) for a, b in zip(plain, recomputed)) < 0.05


def test_resume_eval_and_generate(tmp_path):
    whole, _ = train(tmp_path / "whole", "rowwise", "cuda", "--checkpoint-every", 20)
    checkpoint = sorted((tmp_path / "whole" / "checkpoints").glob("step-*"))[-1]
    assert "validation" in octavo("eval", checkpoint)
    assert len(octavo("generate", checkpoint, "--prompt", "To be", "--tokens", 20)) > 20
