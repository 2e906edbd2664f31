"""FSDP2 with FP8 all-gather over NCCL trains as one process does; fsdp_ranks.py, on two GPUs."""

import pathlib
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def test_losses_are_those_of_one_process():
    script = pathlib.Path(__file__).with_name("fsdp_ranks.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=500)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("pass ") == 8
