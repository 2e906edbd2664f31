"""What FP8 all-gather adds to a weight's gathering: casts of a rank's shard, and backward's transposed bytes.

    PYTHONPATH=python OCTAVO_BUILD_DIR=build-cuda python bench/all_gather.py [--ranks N] [--repetitions N]
    PYTHONPATH=python OCTAVO_BUILD_DIR=build python bench/all_gather.py --device cpu --sizes 512x256

One process, one GPU: no bytes travel; octavo's reductions and gathered scales go to a group of one, torch's are left
out. For the shard of a bf16
weight (N, K) on one of N ranks: what fsdp_pre_all_gather does in each pass, with and without
precompute_float8_scales; then the whole weight's bytes transposed, as backward's product wants them. "torch" is the
same in plain torch operators, as it was done before. Medians of a call; the ratio to a copy of the bf16 shard (of the
bytes, for the last lines), and how many operators it calls that are no views and no collectives: launches, on a GPU,
but for amax, which clears its result first.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.distributed.sharded import Casts, ShardedWeight, know_amaxes

ops = torch.ops.octavo
LARGEST = torch.finfo(torch.float8_e4m3fn).max
VIEWS = ("view", "t.", "detach", "slice", "alias", "as_strided", "select", "unbind", "split", "empty", "new_empty", "c10d",
         "expand", "unsqueeze", "_unsafe_view", "transpose.")


class Operators(TorchDispatchMode):
    """Counts the operators that work."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).split(".", 1)[-1] if str(func).startswith("aten") else str(func)
        self.count += not name.startswith(VIEWS)
        return func(*args, **(kwargs or {}))


def count(function):
    with Operators() as operators:
        function()
    return operators.count


def in_backward(function):
    """What function() returns when autograd's backward calls it: FSDP2's hooks ask which pass runs."""
    results = []

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            with torch.no_grad():
                results.append(function())
            return dy

    Call.apply(torch.ones((), requires_grad=True)).backward()
    return results[0]


def median_ms(function, repetitions, device):
    for _ in range(3):
        function()
    times = []
    for _ in range(repetitions):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            begin = time.perf_counter()
            function()
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


# --- As it was: plain torch -----------------------------------------------------------------------------


def torch_amax(rows, axis):
    magnitude = rows.abs().float()
    return magnitude.amax().view(1) if axis is None else magnitude.amax(axis)


def torch_cast(rows, amax, axis):
    inv_scale = (LARGEST / amax.double().clamp(min=1e-12)).float()
    if axis is not None:  # rowwise's scales are powers of two
        power = (inv_scale.view(torch.int32) & 0x7F800000).view(torch.float32)
        inv_scale = torch.where(inv_scale.isnan(), inv_scale, power)
    by = inv_scale.view(-1, 1) if axis == 1 else inv_scale
    data = (rows.float() * by).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
    return data, 1 / inv_scale


def torch_contenders(rows):
    amaxes = {axis: torch_amax(rows, axis) for axis in (None, 0, 1)}
    for name, axis, known in (("tensorwise", None, False), ("tensorwise, known amax", None, True),
                              ("rowwise forward", 1, False), ("rowwise forward, known amax", 1, True),
                              ("rowwise backward", 0, False), ("rowwise backward, known amax", 0, True)):
        def cast(axis=axis, known=known):
            return torch_cast(rows, amaxes[axis] if known else torch_amax(rows, axis), axis)

        yield name, False, cast


# --- As FSDP2 calls it ----------------------------------------------------------------------------------


def contenders(rows, mesh):
    for recipe, passes in (("tensorwise", ("",)), ("rowwise", (" forward", " backward"))):
        for part in passes:
            for known in (False, True):
                shard = ShardedWeight(rows, Casts(recipe))

                def gather(shard=shard):
                    (data,), metadata = shard.fsdp_pre_all_gather(mesh, rows.shape, None, None, None)
                    scales = [s for s in (metadata.row_scale, metadata.column_scale) if s is not None]
                    return data, scales[0]

                if known:
                    gather()  # which tells the mesh
                    know_amaxes([shard])
                yield f"{recipe}{part}{', known amax' if known else ''}", "backward" in part, gather


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="4096x4096,14336x4096", help="NxK of whole weights")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=30)
    args = parser.parse_args()
    if args.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo", rank=0, world_size=1,
                                init_method=f"file://{os.path.join(folder, 'store')}")
        mesh = init_device_mesh(args.device, (1,))
        for size in args.sizes.split(","):
            n, k = (int(side) for side in size.split("x"))
            run(n, k, mesh, args)
        dist.destroy_process_group()


def run(n, k, mesh, args):
    generator = torch.Generator(args.device).manual_seed(0)
    rows = torch.randn(-(-n // args.ranks), k, device=args.device, generator=generator).bfloat16()
    print(f"\n{n} x {k}, a shard of {rows.shape[0]} rows")
    copy = median_ms(rows.clone, args.repetitions, args.device)
    print(f"{'copy of the shard':36} {copy:8.3f} ms   1.00x")
    before = {name: function for name, _, function in torch_contenders(rows)}
    for name, backward, function in contenders(rows, mesh):
        call = in_backward if backward else (lambda f: f())
        for (got, scale), (want, want_scale) in [(call(function), before[name]())]:
            assert torch.equal(got, want) and torch.equal(scale.view(-1), want_scale.view(-1)), name
        for label, f in (("torch", before[name]), ("octavo", function)):
            operators = call(lambda: count(f))
            ms = call(lambda: median_ms(f, args.repetitions, args.device))
            print(f"{name:29} {label:6} {ms:8.3f} ms {ms / copy:6.2f}x  {operators:2} operators")
    whole = torch.randint(0, 256, (n, k), device=args.device, dtype=torch.uint8, generator=generator)
    copy = median_ms(whole.clone, args.repetitions, args.device)
    print(f"{'copy of the whole bytes':36} {copy:8.3f} ms   1.00x")
    assert torch.equal(ops.transpose_bytes(whole), whole.t())
    for label, f in (("torch", lambda: whole.t().contiguous()), ("octavo", lambda: ops.transpose_bytes(whole))):
        ms = median_ms(f, args.repetitions, args.device)
        print(f"{'whole bytes, transposed':29} {label:6} {ms:8.3f} ms {ms / copy:6.2f}x")


if __name__ == "__main__":
    main()
