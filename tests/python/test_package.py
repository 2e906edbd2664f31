"""The package as people get it: a wheel, its command, its examples, and an import that explains itself."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import octavo
import pytest
import torch
from octavo import _library

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = str(pathlib.Path(torch.__file__).parents[1])


def run(*command, **environment):
    keep = {k: v for k, v in os.environ.items() if k not in ("OCTAVO_BUILD_DIR", "PYTHONPATH")}
    return subprocess.run([sys.executable, *map(str, command)], text=True, capture_output=True, cwd="/",
                          env=keep | {k: str(v) for k, v in environment.items()})


def from_source(*command, **environment):
    library = _library.LIBRARY.parents[1]
    path = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return run(*command, OCTAVO_BUILD_DIR=library, PYTHONPATH=path, **environment)


def test_info_prints_what_is_native_and_what_emulated():
    done = from_source("-m", "octavo", "info")
    assert done.returncode == 0, done.stderr
    for pattern in [r"octavo +0\.1\.0", r"torch +2\.", "mxfp8_cublas = mxfp8", "flavour ocp",
                    r"dense rowwise +emulated \(reference backend\)", r"experts mx +emulated"]:
        assert re.search(pattern, done.stdout), (pattern, done.stdout)
    assert "experts tensorwise" not in done.stdout  # there is no such recipe
    done = from_source("-m", "octavo", "nonsense")
    assert done.returncode == 2 and "info" in done.stderr


def test_another_torch_is_a_clear_error_before_anything_is_loaded(tmp_path):
    with pytest.raises(ImportError, match=r"expects torch 2\.11\.0, got 2\.15\.0.*install torch==2\.11\.0"):
        _library.check_torch("2.11.0", "2.15.0+cpu")
    _library.check_torch("2.11.0", "2.11.0+cu130")
    folder = tmp_path / "octavo"
    folder.mkdir()
    (folder / "liboctavo.so").write_bytes(b"not a library")  # loading it would be another error
    (folder / "build_info.json").write_text('{"torch": "9.9.0"}')
    done = run("-c", "import octavo", OCTAVO_BUILD_DIR=tmp_path, PYTHONPATH=ROOT / "python")
    assert done.returncode == 1
    assert "ImportError: octavo: this build expects torch 9.9.0, got" in done.stderr


def test_a_missing_library_is_a_clear_error(tmp_path):
    done = run("-c", "import octavo", OCTAVO_BUILD_DIR=tmp_path, PYTHONPATH=ROOT / "python")
    assert f"expected liboctavo.so in {tmp_path.resolve()}/octavo, got none" in done.stderr


def test_annotations_are_for_type_checkers_too():
    assert (ROOT / "python/octavo/py.typed").exists()
    for name in octavo.__all__:
        assert getattr(octavo, name).__doc__, name


@pytest.mark.skipif(not importlib.util.find_spec("scikit_build_core"),
                    reason="pip's build backend is missing: pip install scikit-build-core")
def test_a_wheel_installs_and_trains(tmp_path):
    build = run("-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", ROOT, "-w", tmp_path,
                "-C", f"cmake.define.OCTAVO_PREBUILT={_library.LIBRARY}")
    assert build.returncode == 0, build.stdout + build.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"octavo-0\.1\.0-py3-none-linux_\w+\.whl", wheel.name)  # no Python ABI
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read("octavo-0.1.0.dist-info/METADATA").decode()
    assert {"octavo/liboctavo.so", "octavo/libhwy.so.1", "octavo/build_info.json", "octavo/py.typed"} <= names
    assert f"Requires-Dist: torch=={torch.__version__.split('+')[0]}" in metadata

    # A fresh environment that sees this one's torch.
    venv = tmp_path / "venv"
    assert run("-m", "venv", "--without-pip", venv).returncode == 0
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "torch.pth").write_text(SITE + "\n")
    install = run("-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel)
    assert install.returncode == 0, install.stderr
    environment = {k: v for k, v in os.environ.items() if k not in ("OCTAVO_BUILD_DIR", "PYTHONPATH")}
    done = subprocess.run(
        [venv / "bin/python", ROOT / "examples/python/minimal_gpt.py"], text=True, capture_output=True,
        cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 1.5


def test_the_minimal_example_is_short():
    assert len((ROOT / "examples/python/minimal_gpt.py").read_text().splitlines()) < 40


@pytest.mark.parametrize("arguments", [[], ["--compile"]])
def test_the_two_line_example_trains_a_transformers_llama(arguments):
    pytest.importorskip("transformers")
    done = from_source(ROOT / "examples/python/two_lines.py", *arguments)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert losses[-1] < losses[0] - 0.8, losses


def test_the_fine_tuning_example_saves_what_it_can_load_again(tmp_path):
    pytest.importorskip("transformers")
    example = ROOT / "examples/python/finetune.py"
    done = from_source(example, "--output", tmp_path / "a", "--epochs", 2)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("epoch")]
    assert losses[1] < losses[0] < 4

    # What it saved is an ordinary Hugging Face folder.
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tmp_path / "a")
    assert type(model.lm_head) is type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
