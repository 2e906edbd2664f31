"""python -m octavo info: what this installation is and what runs natively."""

from __future__ import annotations

import argparse

import torch

from octavo import _library, recipes

HELP = "print versions, devices, and what is native and what emulated"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def described(device: torch.device) -> dict[str, str]:
    """What the library says about a device: product, architecture, flavour, fp8_hardware, and how
    "dense rowwise", "experts mx" and the like run. Errors: RuntimeError for an unknown GPU, and for a GPU
    in a build without GPU kernels."""
    return dict(line.split("=", 1) for line in _library.ops.describe_device(device))


def run(args: argparse.Namespace) -> int:
    info = _library.BUILD_INFO
    gpu = "with GPU kernels" if info.get("gpu") else "without GPU kernels"
    print(f"octavo    {info.get('version', 'unknown')}, {gpu}")
    print(f"library   {_library.LIBRARY}")
    print(f"torch     {torch.__version__}, built against {info.get('torch', 'unknown')}")
    print(f"recipes   {', '.join(recipes.names())}")
    print(f"aliases   {', '.join(f'{a} = {r}' for a, r in recipes.aliases().items())}")
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    for device in devices:
        try:
            facts = described(device)
        except RuntimeError as error:
            print(f"\n{device}: not usable: {str(error).splitlines()[0]}")
            continue
        print(f"\n{device}: {facts.pop('product')}, {facts.pop('architecture')}, flavour "
              f"{facts.pop('flavour')}, FP8 hardware: {facts.pop('fp8_hardware')}")
        for product, how in facts.items():
            print(f"  {product:20} {how}")
    return 0
