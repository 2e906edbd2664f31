"""torchtitan 0.2's trainer with octavo's converters on GPUs: its Llama debug model, converted and not. By hand:

    PYTHONPATH=python OCTAVO_BUILD_DIR=build-cuda python -m pytest -s tests/gpu/test_torchtitan.py
"""

import importlib.util
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest
import torch

if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed: pip install torchtitan==0.2.2", allow_module_level=True)
GPUS = torch.cuda.device_count()
if not GPUS:
    pytest.skip("no GPU", allow_module_level=True)

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 20
FLAGS = ["--model.name=llama3_bytes", "--model.flavor=debugmodel", f"--training.steps={STEPS}",
         "--training.seq_len=512", "--training.local_batch_size=8", "--lr_scheduler.warmup_steps=2",
         "--optimizer.lr=1e-3", "--metrics.log_freq=1", "--metrics.disable_color_printing", "--debug.seed=1"]
OCTAVO = ["--job.custom_config_module=octavo.torchtitan", "--model.converters=octavo.linear.float8",
          "--quantize.linear.float8.filter_fqns=output"]


def losses(tmp_path, *flags, ranks=1):
    """The losses of torchtitan's log, a step each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with open(tmp_path / f"rank{rank}.log", "w") as log:
            processes.append(subprocess.Popen(
                [sys.executable, ROOT / "tests/gpu/titan_bytes.py", *FLAGS, f"--job.dump_folder={tmp_path}", *flags],
                env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT))
    codes = [process.wait(timeout=300) for process in processes]
    log = (tmp_path / "rank0.log").read_text()
    assert codes == [0] * ranks, "\n".join((tmp_path / f"rank{r}.log").read_text()[-3000:] for r in range(ranks))
    found = [float(value) for value in re.findall(r"step: *\d+ +loss: *([0-9.naif]+)", log)]
    assert len(found) == STEPS, log[-3000:]
    speed = re.findall(r"tps: *([0-9,]+)", log)[-1]
    print(f"\n{' '.join(flags)[-110:]:110} {ranks} ranks: loss {found[0]:.4f} -> {found[-1]:.4f}, {speed} tokens/s")
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return losses(tmp_path_factory.mktemp("plain"))


def check(got, want):
    assert want[-1] < want[0] - 1  # bytes of a text are learnt quickly
    # FP8 noise in the weights' way: the losses of 20 steps stay beside those of bf16.
    assert max(abs(a - b) for a, b in zip(got, want)) < 0.1, (got, want)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise"])
@pytest.mark.parametrize("compiled", [False, True])
def test_debug_model(recipe, compiled, plain, tmp_path):
    chosen = {"tensorwise": [], "blockwise": ["--octavo.recipe=blockwise"]}.get(
        recipe, [f"--quantize.linear.float8.recipe_name={recipe}"])
    more = ["--compile.enable", "--compile.components=model,loss"] if compiled else []
    check(losses(tmp_path, *OCTAVO, *chosen, *more), plain)


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("mode", ["none", "full"])
def test_fsdp_with_fp8_all_gather(recipe, mode, tmp_path):
    folders = [tmp_path / name for name in ("plain", "octavo")]
    for folder in folders:
        folder.mkdir()
    want = losses(folders[0], ranks=2)
    chosen = [] if recipe == "tensorwise" else [f"--quantize.linear.float8.recipe_name={recipe}"]
    got = losses(folders[1], *OCTAVO, *chosen, "--quantize.linear.float8.enable_fsdp_float8_all_gather",
                 "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
                 "--parallelism.fsdp_reshard_after_forward=always", f"--activation_checkpoint.mode={mode}", ranks=2)
    check(got, want)
