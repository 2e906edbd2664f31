"""Peak GPU memory and speed of `octavo train`, BF16 beside the recipes: one short run each.

    OCTAVO_BUILD_DIR=build-cuda python bench/training_memory.py [--recipes R,...] [OPTION VALUE ...]

Options it does not know go to `octavo train` (--preset, --batch, --sequence, --weight-cache, ...). The
peak is LibTorch's allocator's, as torch.cuda.max_memory_allocated(): all tensors of the process, from
the first step's measuring of algorithms to the last.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEFAULTS = ["--preset", "100m", "--batch", "16", "--sequence", "512", "--steps", "12", "--lr", "0.0003",
            "--warmup-steps", "2", "--validation-batches", "1", "--dtype", "bfloat16"]


def run(command, recipe, options):
    with tempfile.TemporaryDirectory() as folder:
        words = {}
        for key, value in zip((DEFAULTS + options)[::2], (DEFAULTS + options)[1::2]):
            words[key] = value
        arguments = [word for option in words.items() for word in option]
        subprocess.run([command, "train", "--device", "cuda", "--recipe", recipe, "--run-dir", folder,
                        "--train-data", ROOT / "examples/data/tinyshakespeare.txt", *arguments],
                       check=True, stdout=subprocess.DEVNULL)
        return json.loads((pathlib.Path(folder) / "summary.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="high_precision,tensorwise,rowwise,rowwise_with_gw_hp")
    args, options = parser.parse_known_args()
    command = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build-cuda")) / "apps/octavo/octavo"
    print(f"octavo train {' '.join(DEFAULTS + options)}")
    base = None
    for recipe in args.recipes.split(","):
        summary = run(command, recipe, options)
        peak = summary["peak_memory"]
        base = base or peak
        print(f"{recipe:20} peak {peak / 2**20:8.1f} MiB {100 * (peak / base - 1):+6.2f}%  "
              f"{summary['tokens_per_second']:9.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
