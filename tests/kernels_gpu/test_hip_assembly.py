"""The GPU kernels compile as HIP, and the assembly does what AMD hardware should be asked to do.

Needs clang 22 (or a clang of 19 and newer with the AMDGPU target) and HIP's headers, no GPU and no
ROCm: `apt-get install clang-22 libamdhip64-dev`. Skipped, saying so, where they are missing.
"""

import concurrent.futures
import os
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


# The kernels that write FP8, minutes of one core; without OCTAVO_TEST_ALL (./run test-all sets it)
# those that differ most.
if os.environ.get("OCTAVO_TEST_ALL"):
    QUANTISERS = dict.fromkeys(
        ARCHITECTURES, ["cast", "quantize_block", "quantize_mx", "quantize_resident", "quantize_row"]
    )
else:
    QUANTISERS = {"gfx942": ["cast", "quantize_row"], "gfx950": ["quantize_row"]}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def quantisers(request, tmp_path_factory):
    """The architecture, and kernel source -> {kernel: assembly}."""
    out = tmp_path_factory.mktemp("hip")

    def assembly(stem):
        return compile_hip(KERNELS / f"{stem}.cu", request.param, out / f"{stem}.s")

    stems = QUANTISERS[request.param]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return request.param, dict(zip(stems, map(functions, pool.map(assembly, stems))))


def native(architecture, kernels):
    """The instances whose format the hardware converts, with its instruction.

    Format numbers: 0 e4m3fn, 1 e5m2 (OCP, gfx950); 2 e4m3fnuz, 3 e5m2fnuz (FNUZ, gfx942).
    """
    numbers = {"gfx942": (2, 3), "gfx950": (0, 1)}[architecture]
    for number, instruction in zip(numbers, ("v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32")):
        for name, text in kernels.items():
            if f"StaticEncoderILNS_6FormatE{number}E" in name:
                yield name, text, instruction


def test_quantisers_use_the_hardware_conversion(quantisers):
    architecture, sources = quantisers
    for stem, kernels in sources.items():
        chosen = list(native(architecture, kernels))
        assert len(chosen) >= 6, (stem, sorted(kernels))  # two formats; bf16, fp16, fp32
        for name, text, instruction in chosen:
            # Two elements an instruction; 16 x 8 of them, in each layout or (128x128) once.
            least = 8 if stem == "quantize_row" else 64
            assert len(re.findall(instruction, text)) >= least, name


def test_formats_without_an_instruction_have_no_vector_kernels(quantisers):
    architecture, sources = quantisers
    other = {"gfx942": (0, 1), "gfx950": (2, 3)}[architecture]
    for kernels in sources.values():
        for name, text in kernels.items():
            if any(f"StaticEncoderILNS_6FormatE{n}E" in name for n in other):
                assert "global_store" not in text, name


def test_transposed_tiles_are_permuted_in_registers_and_stored_16_bytes_wide(quantisers):
    architecture, sources = quantisers
    for stem, kernels in sources.items():
        for name, text, _ in native(architecture, kernels):
            if "LayoutsE2E" in name:  # Layouts::kRowsAcross
                assert len(re.findall("global_store_dwordx2", text)) >= 16, name
            elif stem != "quantize_row":
                assert len(re.findall("v_perm_b32", text)) >= 64, name
                assert len(re.findall("global_store_dwordx4", text)) >= 8, name
                assert len(re.findall("global_load_dwordx4", text)) >= 16, name
            else:
                assert re.search("global_store_dwordx4", text), name
            assert "global_store_byte" not in text or stem == "quantize_mx", name  # codes
            assert "scratch_store" not in text, name  # the tile stays in registers


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bytes_are_transposed_in_registers(architecture, tmp_path):
    kernels = functions(compile_hip(KERNELS / "transpose.cu", architecture, tmp_path / "transpose.s"))
    (text,) = (text for name, text in kernels.items() if "squares" in name)
    assert len(re.findall("v_perm_b32", text)) >= 128
    assert len(re.findall("global_load_dwordx4", text)) >= 16
    assert len(re.findall("global_store_dwordx4", text)) >= 16
    assert "global_store_byte" not in text and "scratch_store" not in text


ATOMIC = r"""
#include <hip/hip_runtime.h>
extern "C" __global__ void relaxed(unsigned* a, unsigned v) {
  __hip_atomic_fetch_max(a, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
extern "C" __global__ void ordered(unsigned* a, unsigned v) {
  __hip_atomic_fetch_max(a, v, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
"""


FENCE = r"buffer_wbl2|buffer_inv"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_amax_atomics_are_relaxed(architecture, tmp_path):
    source = tmp_path / "atomic.hip"
    source.write_text(ATOMIC)
    assembly = compile_hip(source, architecture, tmp_path / "atomic.s")
    relaxed, ordered = assembly.split("\nordered:")
    assert not re.search(FENCE, relaxed)
    assert re.search(FENCE, ordered), "the ordered form should show what relaxed avoids"

    amax = compile_hip(KERNELS / "amax.cu", architecture, tmp_path / "amax.s")
    assert re.search(r"global_atomic_umax|global_atomic_max_u32|flat_atomic_umax", amax)
    assert not re.search(FENCE, amax)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("stem", ["group_tiles", "launch"])
def test_the_rest_compiles(architecture, stem, tmp_path):
    compile_hip(KERNELS / f"{stem}.cu", architecture, tmp_path / f"{stem}.s")
