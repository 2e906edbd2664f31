"""Column scales by groups: one pass that transposes on the chip against a transposed copy afterwards.

    OCTAVO_BUILD_DIR=build-cuda python bench/column_layouts.py [--repetitions N]

Both quantise x (M, K) with one scale for each group and column and leave it transposed, K-contiguous
along M, as the weight gradient wants it. The naive layout: amax of every group's columns, a cast by rows
with those scales (both compiled by torch), and `.t().contiguous()` of the bytes; group sizes are known
to the host and groups are not padded. On the chip: octavo::quantize_grouped, sizes on the device, groups
padded. A DeepSeek-V3 expert layer quantises x, h, dy and their gradients so: the sum is the last line of
a case. Medians of CUDA events.
"""

import argparse
import os
import pathlib

import torch

from experts import median_ms, uneven_ends

LARGEST = torch.finfo(torch.float8_e4m3fn).max
# experts, tokens, columns of each operand of one layer: x, h, the gradient of gate and up, dy
CASES = [(8, 32768, [7168, 2048, 4096, 7168]), (32, 32768, [7168, 2048, 4096, 7168])]


def naive_quantiser(x, ends):
    sizes = torch.diff(ends.cpu(), prepend=torch.zeros(1, dtype=torch.int32)).tolist()
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).cuda()
    torch._dynamo.reset()

    @torch.compile(dynamic=False)
    def amaxes(x):
        return torch.stack([part.abs().amax(0).float() for part in x.split(sizes)])

    @torch.compile(dynamic=False)
    def cast(x, amax):
        inv_scale = torch.exp2(torch.floor(torch.log2(LARGEST / amax.clamp_min(1e-12))))
        return (x.float() * inv_scale[group]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)

    return lambda: amaxes(x), lambda amax: cast(x, amax)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    args = parser.parse_args()
    build = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build-cuda"))
    torch.ops.load_library(str(build / "octavo" / "liboctavo.so"))
    quantize = torch.ops.octavo.quantize_grouped
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds")
    for experts, tokens, widths in CASES:
        ends = uneven_ends(tokens, experts)
        sums = [0.0, 0.0]
        for width in widths:
            x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
            amaxes, cast = naive_quantiser(x, ends)
            amax = amaxes()
            by_rows = cast(amax)
            steps = {
                "amax": amaxes,
                "cast": lambda: cast(amax),
                "copy": lambda: by_rows.view(torch.uint8).t().contiguous(),
                "naive": lambda: cast(amaxes()).view(torch.uint8).t().contiguous(),
                "chip": lambda: quantize(x, ends, "e4m3fn", "rowwise", layout="transposed",
                                         scale_rounding="power_of_two"),
                "clone": x.clone,
            }
            us = {name: 1e3 * median_ms(step, args.repetitions) for name, step in steps.items()}
            sums[0] += us["naive"]
            sums[1] += us["chip"]
            print(f"{tokens}x{width} E={experts:<3} naive {us['naive']:8.1f} (amax {us['amax']:.1f}, "
                  f"cast {us['cast']:.1f}, transposed copy {us['copy']:.1f})   on the chip "
                  f"{us['chip']:7.1f}   {us['naive'] / us['chip']:.2f}x   clone {us['clone']:.1f}",
                  flush=True)
        print(f"a layer, E={experts}: naive {sums[0]:.1f}, on the chip {sums[1]:.1f}, "
              f"{sums[0] / sums[1]:.2f}x", flush=True)


if __name__ == "__main__":
    main()
