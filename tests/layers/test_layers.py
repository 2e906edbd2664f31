"""Rules of the house that a compiler does not check, by reading the sources.

Each rule is a function from (path, text) to complaints; a second test feeds each rule a line that
breaks it, so that a rule which finds nothing is known to look.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each folder of octavo/ includes only itself and those before it.
LAYERS = ["formats", "device", "kernels", "quantize", "gemm", "recipe", "ops", "distributed", "nn",
          "models", "train"]
WITHOUT_TORCH = ["formats", "device", "kernels"]
TORCH_HEADER = re.compile(r"(ATen|c10|caffe2|torch|tensorpipe)/")
SOURCE_ENDINGS = {".h", ".cpp", ".cu", ".cuh", ".hip", ".inl"}

# The largest values of the formats, which only octavo/formats writes: as decimal, with or without
# a fraction, exponent or suffix.
FORMAT_LIMIT = re.compile(r"(?<![\w.])(448|240|57344)(\.0*)?([eE][+]?0+)?[fFuUlL]*(?![\w.])")
# These drop a NaN operand. A kernel that uses one says on that line or the one above what happens
# to NaN.
NAN_DROPPING = re.compile(r"\b(std::)?(fmaxf?|fminf?|fmed3f?|__builtin_fmaxf?|__builtin_fminf?)\b")
FORBIDDEN_FLAGS = re.compile(
    r"-march=native|-mtune=native|-ffast-math|-Ofast|-ffinite-math-only|--?use_fast_math"
    r"|-ftz=true|-funsafe-math-optimizations|-fgpu-flush-denormals-to-zero")


def includes(text):
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', text, flags=re.MULTILINE)


def layer_of(path):
    parts = pathlib.PurePath(path).parts
    return parts[1] if parts[0] == "octavo" and len(parts) > 2 else None


def without_comments_and_strings(text):
    """The code, line by line: comments and the insides of literals become blanks."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def rule_layers(path, text):
    layer = layer_of(path)
    if layer is None:
        return
    if layer not in LAYERS:
        yield f"{path}: octavo/{layer} is not a layer; the layers are {', '.join(LAYERS)}"
        return
    for header in includes(text):
        other = layer_of(header)
        if other is None:
            continue
        if other not in LAYERS or LAYERS.index(other) > LAYERS.index(layer):
            yield f"{path} includes {header}: octavo/{layer} comes before octavo/{other}"
        if header.startswith(("tests/", "bench/", "apps/")):
            yield f"{path} includes {header}"


def rule_no_torch(path, text):
    if layer_of(path) not in WITHOUT_TORCH:
        return
    for header in includes(text):
        if TORCH_HEADER.match(header):
            yield f"{path} includes {header}: octavo/{layer_of(path)} is framework-free"


def rule_format_limits(path, text):
    if layer_of(path) == "formats" or not path.startswith(("octavo/", "apps/")):
        return
    for number, line in enumerate(without_comments_and_strings(text).splitlines(), 1):
        match = FORMAT_LIMIT.search(line)
        if match:
            yield f"{path}:{number}: {match.group()} is a format's limit: use limits(format).max"


def rule_nan_survives(path, text):
    if layer_of(path) not in WITHOUT_TORCH:
        return
    lines = text.splitlines()
    for number, line in enumerate(without_comments_and_strings(text).splitlines(), 1):
        if NAN_DROPPING.search(line) and not any("NaN" in l for l in lines[max(0, number - 2):number]):
            yield (f"{path}:{number}: {NAN_DROPPING.search(line).group()} drops NaN; a comment on the "
                   f"line (or above it) must say what happens to NaN")


def rule_flags(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if path.endswith((".cmake", "CMakeLists.txt")):
            line = line.split("#")[0]
        match = FORBIDDEN_FLAGS.search(line)
        if match:
            yield f"{path}:{number}: {match.group()} (results must not depend on the machine)"


def source_files():
    for folder in ["octavo", "apps"]:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in SOURCE_ENDINGS:
                yield file


def build_files():
    for pattern in ["CMakeLists.txt", "CMakePresets.json", "run", ".ci/run", "cmake/*.cmake",
                    "*/CMakeLists.txt", "*/*/CMakeLists.txt", "tools/*"]:
        yield from (f for f in sorted(ROOT.glob(pattern))
                    if f.is_file() and not f.relative_to(ROOT).parts[0].startswith("build"))


def complaints_about(rule, files):
    found = []
    for file in files:
        path = file.relative_to(ROOT).as_posix()
        found += rule(path, file.read_text(errors="replace"))
    return found


SOURCE_RULES = [rule_layers, rule_no_torch, rule_format_limits, rule_nan_survives]


@pytest.mark.parametrize("rule", SOURCE_RULES, ids=lambda rule: rule.__name__)
def test_sources(rule):
    files = list(source_files())
    assert len(files) > 10
    complaints = complaints_about(rule, files)
    assert not complaints, "\n".join(complaints)


def test_flags():
    files = [*source_files(), *build_files()]
    complaints = complaints_about(rule_flags, files)
    assert not complaints, "\n".join(complaints)


BROKEN = [
    (rule_layers, "octavo/formats/a.h", '#include "octavo/quantize/granularity.h"'),
    (rule_layers, "octavo/nn/a.cpp", '#include "octavo/train/config.h"'),
    (rule_layers, "octavo/utils/a.h", ""),
    (rule_no_torch, "octavo/kernels/cpu/a.cpp", "  # include <ATen/core/Tensor.h>"),
    (rule_no_torch, "octavo/device/a.h", '#include "c10/util/Exception.h"'),
    (rule_no_torch, "octavo/formats/a.h", "#include <torch/types.h>"),
    (rule_format_limits, "octavo/kernels/a.cpp", "x = clamp(x, -448.f, m);"),
    (rule_format_limits, "octavo/quantize/a.cpp", "const double max = 57344;"),
    (rule_format_limits, "octavo/gemm/a.cpp", "/* 1 */ f(240.0f); // why"),
    (rule_nan_survives, "octavo/kernels/cpu/a.cpp", "\n\namax = fmaxf(amax, x);"),
    (rule_nan_survives, "octavo/kernels/cpu/a.cpp", "amax = std::fmax(amax, x);  // faster"),
    (rule_flags, "CMakeLists.txt", "add_compile_options(-O3 -march=native)"),
    (rule_flags, "octavo/CMakeLists.txt", 'set(CMAKE_CXX_FLAGS "-ffast-math")'),
]


@pytest.mark.parametrize("rule, path, text", BROKEN)
def test_each_rule_finds_what_breaks_it(rule, path, text):
    assert list(rule(path, text))


FINE = [
    (rule_layers, "octavo/quantize/a.h", '#include "octavo/quantize/b.h"\n#include "octavo/formats/c.h"'),
    (rule_no_torch, "octavo/quantize/a.h", "#include <ATen/core/Tensor.h>"),
    (rule_format_limits, "octavo/formats/format.h", ".max = 448.0f"),
    (rule_format_limits, "octavo/kernels/a.cpp", '// up to 448\nf("448"); x = 4480 + 1448 + 448.5f;'),
    (rule_nan_survives, "octavo/kernels/a.cpp", "// NaN was tested above.\nfmaxf(a, b);"),
    (rule_nan_survives, "octavo/kernels/a.cpp", "// no fmaxf here"),
    (rule_flags, "CMakeLists.txt", "# never -march=native"),
]


@pytest.mark.parametrize("rule, path, text", FINE)
def test_no_rule_cries_wolf(rule, path, text):
    assert not list(rule(path, text))
