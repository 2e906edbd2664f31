"""FSDP2 with octavo's FP8 all-gather over NCCL against one process, a rank a GPU. By hand on two GPUs:

    PYTHONPATH=python OCTAVO_BUILD_DIR=build-cuda python tests/gpu/fsdp_ranks.py

Each rank trains the same model by itself and sharded, on the same tokens, so that gradients' averages are exact and
the losses those of one process. Prints a line each with losses, and the milliseconds and peak memory of a larger model's
step with weights gathered in bf16 and in FP8; exits 1 where losses differ.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import octavo
from octavo.distributed import float8_all_gather, precompute_float8_scales

STEPS = 10


class Block(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(d), nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def build(d, f, blocks, recipe, *, gather=None, checkpoint=False, compiled=False, dtype=torch.float32):
    """gather: None for no FSDP2, "bf16" or "fp8" for what it gathers."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = nn.Sequential(*(Block(d, f) for _ in range(blocks)), nn.Linear(d, d, bias=False)).to(dtype)
    octavo.convert_to_float8_training(model, recipe=recipe, filter_fqns=[str(blocks)])
    if gather == "fp8":
        float8_all_gather(model, activation_checkpointing=checkpoint)
    for i in range(blocks):
        if checkpoint:
            model[i] = checkpoint_wrapper(model[i])
        if compiled:
            model[i].compile(backend="aot_eager")
        if gather:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if dtype == torch.bfloat16 else None)
            fully_shard(model[i], reshard_after_forward=True, mp_policy=policy)
    return fully_shard(model, reshard_after_forward=True) if gather else model


def train(model, d, tokens=256):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator("cuda").manual_seed(step)
        x, target = (torch.randn(tokens, d, device="cuda", generator=generator) for _ in range(2))
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        precompute_float8_scales(model)
        losses.append(loss.item())
    return losses


def speed(model, d, tokens=4096):
    """(Median milliseconds of forward and backward, GiB of the peak)."""
    x = torch.randn(tokens, d, device="cuda", dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(12):
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(x).float().square().mean().backward()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        precompute_float8_scales(model)
    return statistics.median(seconds[4:]) * 1e3, torch.cuda.max_memory_allocated() / 2**30


def rank_main():
    rank, world, store = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["STORE"]
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world,
                            device_id=torch.device("cuda", rank))
    say = print if rank == 0 else (lambda *a, **k: None)
    bad = 0
    for recipe in ("tensorwise", "rowwise"):
        want = train(build(256, 704, 3, recipe), 256)
        for options in ({}, {"checkpoint": True}, {"compiled": True}, {"checkpoint": True, "compiled": True}):
            got = train(build(256, 704, 3, recipe, gather="fp8", **options), 256)
            # The same products in one process; NCCL's average of equal numbers is those numbers.
            worst = max(abs(a - b) / b for a, b in zip(got, want))
            ok = worst <= 1e-3
            bad += not ok
            say(f"{'pass' if ok else 'FAIL'} {recipe:11} {'+'.join(options) or 'plain':20} loss {got[0]:.6f} -> "
                f"{got[-1]:.6f}, one process {want[0]:.6f} -> {want[-1]:.6f}, "
                f"{'equal bits' if got == want else f'differ by {worst:.1e}'}", flush=True)
    for recipe in ("tensorwise", "rowwise"):
        for gather in ("bf16", "fp8"):
            model = build(4096, 14336, 8, recipe, gather=gather, dtype=torch.bfloat16)
            ms, peak = speed(model, 4096)
            say(f"     {recipe:11} gathered in {gather}: {ms:8.2f} ms a step on each of {world} GPUs, peak {peak:5.1f} GiB",
                flush=True)
            del model
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    return min(bad, 1)


def main(world=2):
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__], env={
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "STORE": f"{folder}/store"})
            for rank in range(world)]
        return max(process.wait() for process in ranks)


if __name__ == "__main__":
    sys.exit(rank_main() if "STORE" in os.environ else main())
