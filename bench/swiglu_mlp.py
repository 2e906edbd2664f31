"""A dense SwiGLU MLP, forward + backward, fused against operator by operator in one process.

    OCTAVO_BUILD_DIR=build-cuda python bench/swiglu_mlp.py [--recipes R,...] [--sizes M,D,F]
                                                           [--repetitions N] [--kernels]

y = down(silu(gate(x)) * up(x)), bf16. Contenders, interleaved, medians of CUDA events:
  bf16       three at::linear and octavo::swiglu
  operators  three float8_linear and LibTorch's silu and product
  swiglu     three float8_linear and octavo::swiglu
  written    float8_swiglu_mlp, fuse=False: x quantised once, dx in one product, h and gradients written
  fused      float8_swiglu_mlp: h and the gradients of gate and up quantised as they are computed
--kernels lists what one step of the last two launches, without the products.
"""

import argparse
import os
import pathlib

import torch


def measure(steps, repetitions):
    """Medians in ms of each, taken in turn so that clocks and heat are shared."""
    for step in steps.values():
        for _ in range(3):
            step()
    times = {name: [] for name in steps}
    for _ in range(repetitions):
        for name, step in steps.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end))
    return {name: sorted(each)[len(each) // 2] for name, each in times.items()}


def print_kernels(step):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    products = total = launches = 0
    for row in sorted(profile.key_averages(), key=lambda r: -r.device_time_total):
        microseconds = row.device_time_total / 5
        if microseconds == 0:
            continue
        total += microseconds
        launches += row.count / 5
        name = row.key.replace("octavo::gpu::", "").replace("(anonymous namespace)::", "")
        if any(word in name for word in ("gemm", "nvjet", "cutlass", "xmma")):
            products += microseconds
        else:
            print(f"    {microseconds:8.1f} us  {row.count / 5:4.1f} x {name[:150]}")
    print(f"    total {total:.0f} us in {launches:.0f} launches, products {products:.0f} us, "
          f"the rest {total - products:.0f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="tensorwise,rowwise,rowwise_with_gw_hp,blockwise,mxfp8")
    parser.add_argument("--sizes", default="8192,4096,14336")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    build = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build-cuda"))
    torch.ops.load_library(str(build / "octavo" / "liboctavo.so"))
    octavo = torch.ops.octavo
    m, d, f = map(int, args.sizes.split(","))
    options = dict(device="cuda", dtype=torch.bfloat16)
    torch.manual_seed(0)
    x = torch.randn(m, d, **options).requires_grad_()
    weights = [(torch.randn(n, k, **options) * k**-0.5).requires_grad_()
               for n, k in [(f, d), (f, d), (d, f)]]
    dy = torch.randn(m, d, **options)

    def step(function):
        def run():
            for leaf in (x, *weights):
                leaf.grad = None
            function().backward(dy)
        return run

    def layers(linear, swiglu):
        return lambda: linear(swiglu(linear(x, weights[0]), linear(x, weights[1])), weights[2])

    print(f"{torch.cuda.get_device_name()}; {m} x {d} x {f}, bf16; ms, forward + backward")
    for recipe in args.recipes.split(","):
        def linear(a, w):
            return octavo.float8_linear(a, w, None, recipe)

        def mlp(fuse):
            return lambda: octavo.float8_swiglu_mlp(x, *weights, recipe, "auto", fuse)

        steps = {
            "bf16": step(layers(torch.nn.functional.linear, octavo.swiglu)),
            "operators": step(layers(linear, lambda g, u: torch.nn.functional.silu(g) * u)),
            "swiglu": step(layers(linear, octavo.swiglu)),
            "written": step(mlp(False)),
            "fused": step(mlp(True)),
        }
        times = measure(steps, args.repetitions)
        print(f"{recipe:20}" + "  ".join(f"{name} {ms:.3f}" for name, ms in times.items())
              + f"  | fused to bf16 {times['bf16'] / times['fused']:.2f}x, to operators "
              f"{times['operators'] / times['fused']:.3f}x, to written "
              f"{times['written'] / times['fused']:.3f}x", flush=True)
        if args.kernels:
            for name in ("written", "fused"):
                print(f"  {name}")
                print_kernels(steps[name])


if __name__ == "__main__":
    main()
