"""Files of octavo's writer open with the safetensors package, and the reverse.

The C++ test program copies in.safetensors to out.safetensors through octavo's reader and writer.
"""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

PROGRAM = Path(os.environ.get("OCTAVO_BUILD_DIR", "build")) / "tests" / "test_train"

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def random_bytes(sizes, dtype, generator):
    """Any bit pattern, NaNs and signed zeros too."""
    high = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, high, (*sizes, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(sizes)


def as_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.fixture
def exchange(tmp_path):
    def run(tensors, metadata):
        save_file(tensors, tmp_path / "in.safetensors", metadata)
        done = subprocess.run(
            [PROGRAM, "--gtest_filter=SafetensorsExchange.*"],
            env={**os.environ, "OCTAVO_SAFETENSORS_EXCHANGE": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return tmp_path / "out.safetensors"

    return run


def test_package_and_octavo_read_each_other(exchange):
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"{str(dtype).removeprefix('torch.')}.{'x'.join(map(str, sizes))}": random_bytes(
            sizes, dtype, generator
        )
        for dtype in DTYPES
        for sizes in [(), (0,), (1,), (3, 5), (2, 0, 7), (33, 127)]
    }
    metadata = {"format": "pt", "note": 'quotes " and ü'}
    path = exchange(tensors, metadata)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == metadata
        assert set(file.keys()) == set(tensors)
        for name, expected in tensors.items():
            got = file.get_tensor(name)
            assert got.dtype == expected.dtype, name
            assert got.shape == expected.shape, name
            assert torch.equal(as_bytes(got), as_bytes(expected)), name


def test_no_metadata(exchange):
    path = exchange({"x": torch.arange(3.0)}, None)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() is None
        assert torch.equal(file.get_tensor("x"), torch.arange(3.0))
