"""An expert FFN, forward + backward, beside BF16 torch._grouped_mm in one process.

    OCTAVO_BUILD_DIR=build-cuda python bench/experts.py [--recipes R,...] [--keep auto|on|off]
                                                        [--repetitions N] [--micro-batches N]
                                                        [--only NAME] [--kernels]

y = linear(swiglu(linear(x, gate and up)), down) over uneven groups; both contenders use octavo::swiglu,
so they differ in the linears alone. Medians of CUDA events. Fast accumulation in all products, the
default for experts. --micro-batches 4: four passes that share the weights and sum their gradients, as
a step with gradient accumulation has them; Octavo quantises the weights once (octavo::quantize_weight);
times are of one pass. --only: cases whose name holds this text. --kernels lists the kernels of one step.
"""

import argparse
import os
import pathlib
import re

import torch

# name, tokens, model width, hidden width, experts
CASES = [("DeepSeek-V3, E=8", 32768, 7168, 2048, 8), ("DeepSeek-V3, E=32", 32768, 7168, 2048, 32),
         ("Llama-4, E=2", 16384, 5120, 8192, 2), ("Llama-4, E=16", 16384, 5120, 8192, 16),
         ("DeepSeek-MoE-16B, E=64", 49152, 2048, 1408, 64)]


def median_ms(step, repetitions):
    for _ in range(3):
        step()
    times = []
    for _ in range(repetitions):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def uneven_ends(tokens, experts):
    """Shares from 1 to 12, the same in every run."""
    share = torch.rand(experts, generator=torch.Generator().manual_seed(0)).pow(2) + 0.1
    ends = (share.cumsum(0) / share.sum() * tokens).round().to(torch.int32)
    ends[-1] = tokens
    return ends.cuda()


def split_recipes(text):
    """At commas outside brackets."""
    return re.findall(r"[^,(]+(?:\([^)]*\))?", text)


def print_kernels(step):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    rows = [r for r in profile.key_averages() if r.device_time_total > 0]
    for row in sorted(rows, key=lambda r: -r.device_time_total):
        print(f"    {row.device_time_total:8.0f} us  {row.count} x {row.key[:100]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="rowwise,rowwise_with_gw_hp")
    parser.add_argument("--keep", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    build = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build-cuda"))
    torch.ops.load_library(str(build / "octavo" / "liboctavo.so"))
    octavo = torch.ops.octavo
    print(f"{torch.cuda.get_device_name()}; keep_weight_transposed {args.keep}; "
          f"fast accumulation all; {args.micro_batches} micro-batches")
    for name, tokens, width, hidden, experts in CASES:
        if args.only not in name:
            continue
        options = dict(device="cuda", dtype=torch.bfloat16)
        torch.manual_seed(0)
        x = torch.randn(tokens, width, **options).requires_grad_()
        gate_up = (torch.randn(experts, 2 * hidden, width, **options) * width**-0.5).requires_grad_()
        down = (torch.randn(experts, width, hidden, **options) * hidden**-0.5).requires_grad_()
        dy = torch.randn(tokens, width, **options)
        offs = uneven_ends(tokens, experts)

        def forward(linear, given):
            h = octavo.swiglu(linear(x, gate_up, *given[:4]))
            return linear(h, down, *given[4:])

        def step(linear, quantise, backward=True):
            gate_up.grad = down.grad = None
            with torch.set_grad_enabled(backward):
                given = quantise()
                for _ in range(args.micro_batches):
                    x.grad = None
                    y = forward(linear, given)
                    if backward:
                        y.backward(dy)

        def times(linear, quantise=tuple):
            return [median_ms(lambda: step(linear, quantise, backward), args.repetitions)
                    / args.micro_batches for backward in (True, False)]

        bf16, bf16_forward = times(lambda a, w: torch._grouped_mm(a, w.transpose(1, 2), offs=offs))
        line = f"{name} {tokens}x{width}x{hidden}: bf16 {bf16:.2f} ms, forward {bf16_forward:.2f}"
        for recipe in split_recipes(args.recipes):
            def linear(a, w, *given):
                return octavo.float8_grouped_linear(a, w, offs, recipe, args.keep, *given)

            def quantise():
                if args.micro_batches == 1:
                    return ()
                return (*octavo.quantize_weight(gate_up, recipe), *octavo.quantize_weight(down, recipe))

            both, alone = times(linear, quantise)
            line += f" | {recipe} {both:.2f} ms {bf16 / both:.2f}x, forward {bf16_forward / alone:.2f}x"
        print(line, flush=True)
        if args.kernels:
            print_kernels(lambda: step(linear, quantise))


if __name__ == "__main__":
    main()
