"""octavo/formats and device compile under nvcc: on a kernel that uses all of formats."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests/formats/device_formats.cu"


def find_nvcc():
    cuda_home = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return shutil.which("nvcc") or shutil.which(str(cuda_home / "bin/nvcc"))


def test_the_source_includes_every_header():
    text = SOURCE.read_text()
    headers = [h for layer in ("device", "formats") for h in (ROOT / "octavo" / layer).glob("*.h")]
    assert len(headers) >= 8
    for header in headers:
        assert f'#include "{header.relative_to(ROOT).as_posix()}"' in text


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc (no GPU)")
def test_formats_compile_for_the_device(tmp_path):
    command = [find_nvcc(), "-std=c++20", "-arch=sm_90", "-Werror=all-warnings", "-I", str(ROOT)]
    command += ["-c", str(SOURCE), "-o", str(tmp_path / "formats.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
