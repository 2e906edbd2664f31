"""The whole step on a GPU: graphs, late figures, memory, and what measures it."""

import json

import pytest
import torch
from test_train import octavo, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


def metrics(run_dir, event):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize("recipe,preset,more", [
    ("high_precision", "debug", ()), ("tensorwise", "debug", ()), ("rowwise", "debug", ("--accumulation", 3)),
    ("rowwise_with_gw_hp", "debug", ("--activation-checkpointing", "selective")),
    ("blockwise", "debug", ("--activation-checkpointing", "block")),
    ("rowwise", "debug", ("--weight-cache", "true", "--accumulation", 2, "--validate-every", 7)),
    ("rowwise", "debug-moe", ())])
def test_a_graph_has_the_bits_of_eager_steps(tmp_path, recipe, preset, more):
    """bf16, as measured: losses of all steps and the validation's, by their bits."""
    options = ("--dtype", "bfloat16", "--deterministic", "true", "--gemm-tuning", "heuristic", "--steps", 20, *more)
    eager, eager_validation = train(tmp_path / "eager", recipe, "cuda", *options, preset=preset)
    graph, graph_validation = train(tmp_path / "graph", recipe, "cuda", *options, "--cuda-graph", "true",
                                    preset=preset)
    assert graph == eager and graph_validation == eager_validation


def test_a_resumed_run_has_the_bits_of_a_whole_one(tmp_path):
    options = ("--dtype", "bfloat16", "--deterministic", "true", "--checkpoint-every", 10, "--keep-checkpoints", 9)
    whole, whole_validation = train(tmp_path / "run", "rowwise", "cuda", *options)
    resumed, validation = train(tmp_path / "run", "rowwise", "cuda", *options, "--resume-step", 20)
    assert resumed[-20:] == whole[-20:] and validation == whole_validation


def test_figures_are_read_late_and_every_step_has_its_line(tmp_path):
    losses, _ = train(tmp_path / "late", "rowwise", "cuda", "--deterministic", "true", "--log-every", 7)
    every, _ = train(tmp_path / "every", "rowwise", "cuda", "--deterministic", "true", "--log-every", 1)
    assert losses == every and len(losses) == 40
    steps = metrics(tmp_path / "late", "train")
    assert [line["step"] for line in steps] == list(range(1, 41))
    assert steps[2]["seconds"] == steps[5]["seconds"]  # read together


@pytest.mark.parametrize("checkpointing", ["none", "selective", "block"])
@pytest.mark.parametrize("recipe,accumulation", [("high_precision", 1), ("tensorwise", 1), ("rowwise", 2)])
def test_the_ledger_is_within_a_tenth_of_the_peak(tmp_path, recipe, accumulation, checkpointing):
    train(tmp_path / "run", recipe, "cuda", "--preset", "100m", "--dtype", "bfloat16", "--steps", 3, "--batch", 8,
          "--sequence", 1024, "--accumulation", accumulation, "--activation-checkpointing", checkpointing,
          "--validation-batches", 1, "--checkpoint-every", 0)
    ledger = metrics(tmp_path / "run", "start")[0]["memory"]["peak"]
    peak = json.loads((tmp_path / "run" / "summary.json").read_text())["peak_memory"]
    assert 0.9 <= ledger / peak <= 1.1, (ledger, peak)


def test_gradients_in_place_are_autograds(tmp_path):
    """Micro-batches add head, embedding and linears in place: the CPU adds them through autograd."""
    for more in (("--accumulation", 3), ("--accumulation", 3, "--tied-head", "true")):
        name = str(len(more))
        gpu, _ = train(tmp_path / f"gpu{name}", "high_precision", "cuda", *more)
        cpu, _ = train(tmp_path / f"cpu{name}", "high_precision", "cpu", *more)
        assert max(abs(a - b) for a, b in zip(gpu, cpu)) < 2e-3  # fp32; sums in another order


def test_bench_step():
    for graph in ("false", "true"):
        report = json.loads(octavo("bench", "step", "--device", "cuda", "--preset", "debug", "--batch", 4,
                                   "--sequence", 256, "--recipes", "tensorwise,rowwise", "--rounds", 2,
                                   "--timed-steps", 2, "--breakdown", "--cuda-graph", graph, "--json"))
        assert [row["recipe"] for row in report["results"]] == ["high_precision", "tensorwise", "rowwise"]
        for row in report["results"]:
            assert row["products"] > 0 and row["attention"] > 0 and row["optimiser"] > 0
            assert (row["quantisation"] > 0) == (row["recipe"] != "high_precision"), row
            assert row["launches"] > 50 and row["peak_gib"] > 0
