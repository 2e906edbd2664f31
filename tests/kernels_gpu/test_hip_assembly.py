"""The GPU kernels compile as HIP, and the assembly does what AMD hardware should be asked to do.

Needs clang 22 (or a clang of 19 and newer with the AMDGPU target) and HIP's headers, no GPU and no
ROCm: `apt-get install clang-22 libamdhip64-dev`. Skipped, saying so, where they are missing.
"""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ROOT / "octavo" / "kernels" / "gpu"
CLANG = next((c for v in (22, 21, 20, 19) if (c := shutil.which(f"clang++-{v}"))), None)
HEADERS = pathlib.Path("/usr/include/hip/hip_runtime.h")
pytestmark = pytest.mark.skipif(
    CLANG is None or not HEADERS.exists(),
    reason="needs clang-22 and libamdhip64-dev",
)
ARCHITECTURES = ["gfx942", "gfx950"]


def compile_hip(source, architecture, output):
    command = [
        CLANG, "-x", "hip", "-std=c++20", "-O3", "--offload-device-only",
        f"--offload-arch={architecture}", "-nogpulib", "-D__HIP_PLATFORM_AMD__",
        "-D__AMDGCN_WAVEFRONT_SIZE=64", f"-I{ROOT}", "-S", "-o", str(output), str(source),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return output.read_text()


def functions(assembly):
    """Name -> text of each kernel."""
    found = {}
    for match in re.finditer(r"^(_Z\w+):\s.*?^\s*s_endpgm.*?^\.Lfunc_end", assembly, re.S | re.M):
        found[match.group(1)] = match.group(0)
    return found


@pytest.fixture(scope="module", params=ARCHITECTURES)
def cast_assembly(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("hip") / "cast.s"
    return request.param, functions(compile_hip(KERNELS / "cast.cu", request.param, out))


def test_casts_use_the_hardware_conversion(cast_assembly):
    architecture, kernels = cast_assembly
    # Format numbers: 0 e4m3fn, 1 e5m2 (OCP, gfx950); 2 e4m3fnuz, 3 e5m2fnuz (FNUZ, gfx942).
    native = {"gfx942": (2, 3), "gfx950": (0, 1)}[architecture]
    for number, instruction in zip(native, ("v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32")):
        chosen = [t for n, t in kernels.items() if f"StaticEncoderILNS_6FormatE{number}E" in n]
        assert len(chosen) == 3, sorted(kernels)  # bf16, fp16, fp32
        for text in chosen:
            # 16 x 8 elements in two layouts, two elements an instruction.
            assert len(re.findall(instruction, text)) == 128


def test_transposed_tiles_are_permuted_in_registers_and_stored_16_bytes_wide(cast_assembly):
    _, kernels = cast_assembly
    for name, text in kernels.items():
        if "StaticEncoder" not in name:
            continue
        assert len(re.findall("v_perm_b32", text)) >= 64, name
        assert len(re.findall("global_store_dwordx4", text)) == 8, name
        assert len(re.findall("global_load_dwordx4", text)) >= 16, name
        assert "scratch_store" not in text, name  # the tile stays in registers


ATOMIC = r"""
#include <hip/hip_runtime.h>
extern "C" __global__ void relaxed(unsigned* a, unsigned v) {
  __hip_atomic_fetch_max(a, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
extern "C" __global__ void ordered(unsigned* a, unsigned v) {
  __hip_atomic_fetch_max(a, v, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
"""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_amax_atomics_are_relaxed(architecture, tmp_path):
    fence = r"buffer_wbl2|buffer_inv"
    source = tmp_path / "atomic.hip"
    source.write_text(ATOMIC)
    assembly = compile_hip(source, architecture, tmp_path / "atomic.s")
    relaxed, ordered = assembly.split("\nordered:")
    assert not re.search(fence, relaxed)
    assert re.search(fence, ordered), "the ordered form should show what relaxed avoids"

    amax = compile_hip(KERNELS / "amax.cu", architecture, tmp_path / "amax.s")
    assert re.search(r"global_atomic_umax|global_atomic_max_u32|flat_atomic_umax", amax)
    assert not re.search(fence, amax)
