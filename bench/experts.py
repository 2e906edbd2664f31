"""An expert FFN, forward + backward, beside BF16 torch._grouped_mm in one process.

    OCTAVO_BUILD_DIR=build-cuda python bench/experts.py [--recipes R,...] [--keep auto|on|off]
                                                        [--repetitions N] [--kernels]

y = linear(swiglu(linear(x, gate and up)), down) over uneven groups; both contenders use octavo::swiglu,
so they differ in the linears alone. Medians of CUDA events. Fast accumulation in all products, the
default for experts. --kernels lists the kernels of one step.
"""

import argparse
import os
import pathlib

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
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    build = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build-cuda"))
    torch.ops.load_library(str(build / "octavo" / "liboctavo.so"))
    octavo = torch.ops.octavo
    print(f"{torch.cuda.get_device_name()}; keep_weight_transposed {args.keep}; "
          "fast accumulation all")
    for name, tokens, width, hidden, experts in CASES:
        options = dict(device="cuda", dtype=torch.bfloat16)
        torch.manual_seed(0)
        x = torch.randn(tokens, width, **options).requires_grad_()
        gate_up = (torch.randn(experts, 2 * hidden, width, **options) * width**-0.5).requires_grad_()
        down = (torch.randn(experts, width, hidden, **options) * hidden**-0.5).requires_grad_()
        dy = torch.randn(tokens, width, **options)
        offs = uneven_ends(tokens, experts)

        def forward(linear):
            return linear(octavo.swiglu(linear(x, gate_up)), down)

        def step(linear):
            x.grad = gate_up.grad = down.grad = None
            forward(linear).backward(dy)

        def forward_only(linear):
            with torch.no_grad():
                forward(linear)

        def times(linear):
            return (median_ms(lambda: step(linear), args.repetitions),
                    median_ms(lambda: forward_only(linear), args.repetitions))

        bf16, bf16_forward = times(lambda a, w: torch._grouped_mm(a, w.transpose(1, 2), offs=offs))
        line = f"{name} {tokens}x{width}x{hidden}: bf16 {bf16:.2f} ms, forward {bf16_forward:.2f}"
        for recipe in args.recipes.split(","):
            def linear(a, w):
                return octavo.float8_grouped_linear(a, w, offs, recipe, args.keep)
            both, alone = times(linear)
            line += f" | {recipe} {both:.2f} ms {bf16 / both:.2f}x, forward {bf16_forward / alone:.2f}x"
        print(line, flush=True)
        if args.kernels:
            print_kernels(lambda: step(linear))


if __name__ == "__main__":
    main()
