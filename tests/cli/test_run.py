"""./run looks at OCTAVO_PYTHON before anything else: one line that names the repair."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import REPOSITORY

# With the programs that requirements.txt brings.
PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])


def front_door(command, python):
    return subprocess.run(
        ["sh", "run", *command],
        cwd=REPOSITORY,
        env={**os.environ, "OCTAVO_PYTHON": str(python), "PATH": PATH},
        capture_output=True,
        text=True,
        timeout=120,
    )


def refused(command, python, *parts):
    done = front_door(command, python)
    assert done.returncode == 1, done
    assert done.stdout == "" and done.stderr.startswith("run: OCTAVO_PYTHON="), done
    assert done.stderr.count("\n") == 1, done
    for part in parts:
        assert part in done.stderr, (part, done)


@pytest.fixture
def python_with(tmp_path):
    """An interpreter that runs `code` when it starts: this one, made to look like another."""

    def make(code):
        (tmp_path / "sitecustomize.py").write_text(code)
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return path

    return make


# importlib.metadata as it looks where some packages are not, or are others.
METADATA = """
import importlib.metadata as metadata
real = metadata.version
def version(name):
    if name in {missing!r}:
        raise metadata.PackageNotFoundError(name)
    return {versions!r}.get(name) or real(name)
metadata.version = version
"""


def test_an_old_python_is_named_with_its_version(python_with):
    python = python_with("import sys; sys.version_info = (3, 9, 2, 'final', 0)")
    for command in ["demo", "test", "bench", "format"]:
        refused([command], python, str(python), "Python 3.9, 3.11 or newer", "unset OCTAVO_PYTHON")


def test_what_the_command_needs_is_asked_for(python_with):
    python = python_with(METADATA.format(missing=["torch", "matplotlib", "pytest"], versions={}))
    repair = f"{python} -m pip install -r requirements.txt"
    refused(["demo"], python, "has no torch, matplotlib:", repair)
    refused(["test"], python, "has no torch, matplotlib, pytest:", repair)
    refused(["bench"], python, "has no torch:", repair)
    python = python_with(METADATA.format(missing=[], versions={"torch": "2.9.1"}))
    refused(["bench"], python, "has torch 2.9.1, the build is pinned to 2.11.0:", repair)


def test_what_is_no_python(tmp_path):
    refused(["test"], tmp_path / "nowhere", "is no program", "python3.11 -m venv")
    refused(["test"], "/bin/true", "is no Python that works", "python3.11 -m venv")
    refused(["test"], "/bin/false", "is no Python that works")


@pytest.mark.skipif(shutil.which("clang-format", path=PATH) is None, reason="no clang-format on PATH")
def test_format_needs_no_torch(python_with):
    python = python_with(METADATA.format(missing=["torch"], versions={}))
    done = front_door(["format", "nonsense"], python)
    assert "format takes --check or nothing" in done.stderr, done
