"""Octavo's linear, or experts, beside BF16 and torchao (eager and compiled), forward + backward, in one
process.

    OCTAVO_BUILD_DIR=build-cuda python bench/peers.py [--moe] [--repetitions N] [--shapes MxKxN,...]
                                                    [--recipes R,...] [--micro-batches N] [--no-peers]
                                                    [--cuda-graphs] [--package]

Medians of CUDA events over inputs that rotate through more memory than the L2 cache holds. A card at its
power limit clocks by what it has just run, so each contender runs SETTLE seconds before its timed steps:
it is timed at the clocks its own work leads to, as in training. Contenders take turns, ROUNDS times, so
that a slow minute of a shared machine slows all of them. Ratios are to BF16 in the same process. Fast
accumulation: forward only, which is the default of both libraries.

--micro-batches 4: four forward and backward passes that share a weight and sum its gradient, as a step
with gradient accumulation has them; Octavo quantises the weight once (octavo::quantize_weight). Times
are of one pass.

--cuda-graphs: BF16 and Octavo once more, each step replayed from a CUDA graph: what small shapes take
without the host's launches.

--moe: a feed-forward network of experts, down(silu(gate(x)) * up(x)), by uneven groups; shapes are
MxDxFxE. BF16 is torch._grouped_mm with a compiled activation, torchao its rowwise
_to_fp8_rowwise_then_scaled_grouped_mm, both with gate and up apart and once more stacked as one weight
(E, 2F, D), as Octavo's is. Group sizes are Dirichlet draws in multiples of 16, which torchao's
products need. Fast accumulation in all products, the default of both libraries' experts.

--package: Octavo through the Python package, once more beside its operator: octavo.Float8Linear, installed
or of this checkout (PYTHONPATH=python). The two should take the same time.
"""

import argparse
import os
import pathlib
import re
import statistics
import time

import torch

SHAPES = "16384x4096x14336,16384x8192x8192,16384x4096x4096,4096x2048x2048"
RECIPES = "tensorwise,rowwise,rowwise_with_gw_hp"
# DeepSeek-V3 with 8 and 32 experts on a GPU, Llama 4 with 2 and 16, DeepSeek-MoE-16B.
MOE_SHAPES = ("32768x7168x2048x8,32768x7168x2048x32,16384x5120x8192x2,16384x5120x8192x16,"
              "49152x2048x1408x64")
MOE_RECIPES = "rowwise,rowwise_with_gw_hp,blockwise"
ROTATION = 3
ROUNDS = 4
SETTLE = 0.25


def step_of(args, xs, dys, weights, forward, prepare):
    """step(index): the micro-batches of one step, forward(x, *prepare()) and its backward."""
    def step(i):
        for weight in weights:
            weight.grad = None
        given = prepare()
        for j in range(i, i + args.micro_batches):
            x = xs[j % ROTATION]
            x.grad = None
            forward(x, *given).backward(dys[j % ROTATION])
    return step


def contenders(args, m, k, n):
    """Name -> callable(index) that runs one forward and backward."""
    device = dict(device="cuda", dtype=torch.bfloat16)
    xs = [torch.randn(m, k, **device).requires_grad_(True) for _ in range(ROTATION)]
    dys = [torch.randn(m, n, **device) for _ in range(ROTATION)]
    w = torch.nn.Parameter(torch.randn(n, k, **device) * k**-0.5)

    def of(forward, weight, prepare=lambda: ()):
        return step_of(args, xs, dys, [weight], forward, prepare)

    yield "bf16", of(lambda x: torch.nn.functional.linear(x, w), w)
    op = torch.ops.octavo.float8_linear
    for recipe in args.recipes.split(","):
        def quantised(r=recipe):
            return torch.ops.octavo.quantize_weight(w, r) if args.micro_batches > 1 else ()

        yield f"octavo {recipe}", of(lambda x, *given, r=recipe: op(x, w, None, r, "auto", *given), w,
                                     quantised)
    if args.package:
        import octavo

        for recipe in args.recipes.split(","):
            linear = torch.nn.Linear(k, n, bias=False, **device)
            linear.weight = w
            linear = octavo.Float8Linear.from_float(linear, recipe=recipe)
            yield f"octavo package {recipe}", of(linear, w)
    if args.no_peers:
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    for recipe in args.recipes.split(","):
        for compiled in (False, True):
            torch._dynamo.reset()
            model = torch.nn.Sequential(torch.nn.Linear(k, n, bias=False, **device))
            model = convert_to_float8_training(
                model, config=Float8LinearConfig.from_recipe_name(recipe))
            weight = model[0].weight
            forward = torch.compile(model) if compiled else model
            yield f"torchao {'compiled' if compiled else 'eager'} {recipe}", of(forward, weight)


def graphed(step):
    """The same steps, captured once and replayed."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for i in range(ROTATION):
            step(i)
    torch.cuda.current_stream().wait_stream(aside)
    graphs = []
    for i in range(ROTATION):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            step(i)
    return lambda i: graphs[i % ROTATION].replay()


def uneven_ends(tokens, experts):
    share = torch.distributions.Dirichlet(torch.full((experts,), 4.0)).sample()
    sizes = (share * tokens / 16).floor().int() * 16
    sizes[-1] += tokens - sizes.sum()
    return sizes.cumsum(0).to(torch.int32).cuda()


def moe_contenders(args, m, d, f, e):
    """As contenders(), of experts."""
    device = dict(device="cuda", dtype=torch.bfloat16)
    xs = [torch.randn(m, d, **device).requires_grad_(True) for _ in range(ROTATION)]
    dys = [torch.randn(m, d, **device) for _ in range(ROTATION)]
    gate_up = torch.nn.Parameter(torch.randn(e, 2 * f, d, **device) * d**-0.5)
    gate, up = (torch.nn.Parameter(part.detach().clone()) for part in gate_up.chunk(2, 1))
    down = torch.nn.Parameter(torch.randn(e, d, f, **device) * f**-0.5)
    offs = uneven_ends(m, e)
    ops = torch.ops.octavo

    def of(forward, prepare=lambda: ()):
        return step_of(args, xs, dys, [gate_up, gate, up, down], forward, prepare)

    def network(product, activation, stacked):
        def forward(x):
            if stacked:
                h = activation(*product(x, gate_up.transpose(-2, -1)).chunk(2, -1))
            else:
                h = activation(product(x, gate.transpose(-2, -1)), product(x, up.transpose(-2, -1)))
            return product(h, down.transpose(-2, -1))
        return forward

    def silu_times(g, u):
        return torch.nn.functional.silu(g) * u

    def bf16(a, b):
        return torch._grouped_mm(a, b, offs=offs, out_dtype=torch.bfloat16)

    yield "bf16", of(network(bf16, torch.compile(silu_times), stacked=False))
    yield "bf16, gate and up stacked", of(network(bf16, torch.compile(silu_times), stacked=True))
    for recipe in args.recipes.split(","):
        def quantised(r=recipe):
            if args.micro_batches == 1:
                return ()
            return (*ops.quantize_weight(gate_up, r), *ops.quantize_weight(down, r))

        def forward(x, *given, r=recipe):
            h = ops.swiglu(ops.float8_grouped_linear(x, gate_up, offs, r, "auto", *given[:4]))
            return ops.float8_grouped_linear(h, down, offs, r, "auto", *given[4:])

        yield f"octavo {recipe}", of(forward, quantised)
    if args.no_peers:
        return
    from torchao.prototype.moe_training.fp8_grouped_mm import (
        _to_fp8_rowwise_then_scaled_grouped_mm as to_fp8_and_product)

    def rowwise(a, b):
        return to_fp8_and_product(a, b, offs, torch.bfloat16, torch.float8_e4m3fn, False)

    for stacked in (False, True):
        more = ", gate and up stacked" if stacked else ""
        yield f"torchao eager rowwise{more}", of(network(rowwise, silu_times, stacked))
        torch._dynamo.reset()
        yield (f"torchao compiled rowwise{more}",
               of(torch.compile(network(rowwise, silu_times, stacked))))


def settle(step):
    end = time.perf_counter() + SETTLE
    while time.perf_counter() < end:
        for i in range(ROTATION):
            step(i)
        torch.cuda.synchronize()


def milliseconds(step, i):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step(i)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def peak_bytes(step):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(0)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10,
                        help="timed steps a round")
    parser.add_argument("--moe", action="store_true", help="experts instead of a linear")
    parser.add_argument("--shapes")
    parser.add_argument("--recipes")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--no-peers", action="store_true", help="Octavo and BF16 only")
    parser.add_argument("--only", default="", help="contenders whose name matches this expression, and bf16")
    parser.add_argument("--package", action="store_true", help="octavo.Float8Linear too")
    args = parser.parse_args()
    args.shapes = args.shapes or (MOE_SHAPES if args.moe else SHAPES)
    args.recipes = args.recipes or (MOE_RECIPES if args.moe else RECIPES)

    build = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build-cuda"))
    torch.ops.load_library(str(build / "octavo" / "liboctavo.so"))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, medians of {ROUNDS} x {args.repetitions}, "
          f"fast accumulation {'in all products' if args.moe else 'forward only'}, {args.micro_batches} micro-batches a step")
    for shape in args.shapes.split(","):
        torch.manual_seed(0)
        sizes = map(int, shape.split("x"))
        steps = [(name, step) for name, step in (moe_contenders if args.moe else contenders)(args, *sizes)
                 if name == "bf16" or re.search(args.only, name)]
        if args.cuda_graphs:
            steps += [(f"{name}, CUDA graph", graphed(step)) for name, step in steps
                      if not name.startswith("torchao")]
        peaks = {}
        for name, step in steps:
            for i in range(ROTATION):
                step(i)
            peaks[name] = peak_bytes(step)
        times = {name: [] for name, _ in steps}
        for _ in range(ROUNDS):
            for name, step in steps:
                settle(step)
                times[name] += [milliseconds(step, i) / args.micro_batches
                                for i in range(args.repetitions)]
        bf16 = statistics.median(times["bf16"])
        for name, samples in times.items():
            median = statistics.median(samples)
            print(f"{shape:19} {name:47} {median:8.3f} ms {bf16 / median:6.2f}x "
                  f"{peaks[name] / 2**20:8.0f} MiB", flush=True)
        del steps
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
