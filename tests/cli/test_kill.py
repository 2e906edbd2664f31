"""A run that is killed at any moment has a readable newest checkpoint and goes on from it."""

import random
import signal
import subprocess
import time

from conftest import COMMAND, losses, run
from safetensors import safe_open

KILLS = 20


def newest(run_dir):
    folder = run_dir / "checkpoints"
    if not folder.exists():
        return None
    return max(folder.glob("step-*"), default=None)


def test_killed_at_random_moments(config, tmp_path):
    run_dir = tmp_path / "run"
    path = config(steps=100000, checkpoint_every=1, warmup_steps=5, log_every=1000)
    moments = random.Random(1)
    reached = []
    for _ in range(KILLS):
        process = subprocess.Popen(
            [COMMAND, "train", "--config", path, "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Somewhere in the first checkpoints after start-up, wherever the machine is by then.
        before = newest(run_dir)
        deadline = time.monotonic() + 60
        while newest(run_dir) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.stderr.read()
        assert process.stderr.read() == ""

        checkpoint = newest(run_dir)
        assert checkpoint is not None
        for name in ["model.safetensors", "optimizer.safetensors"]:
            with safe_open(checkpoint / name, framework="pt") as file:
                for key in file.keys():
                    assert file.get_tensor(key).isfinite().all(), (checkpoint, key)
        reached.append(int(checkpoint.name.removeprefix("step-")))
    assert reached == sorted(set(reached)), reached  # every life went on from the last one

    # Of the metrics no step before a checkpoint is missing.
    assert losses(run_dir).keys() >= set(range(1, reached[-1] + 1))


def test_interrupt_saves_and_resume_goes_on(config, tmp_path):
    run_dir = tmp_path / "run"
    path = config(steps=100000, log_every=1)
    process = subprocess.Popen(
        [COMMAND, "train", "--config", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("step "):
            break
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait() == 130, process.stderr.read()
    step = int(newest(run_dir).name.removeprefix("step-"))
    assert step >= 1
    result = run("train", "--config", path, "--resume", "--steps", step + 2)
    assert result.code == 0, result
    assert losses(run_dir).keys() == set(range(1, step + 3))
