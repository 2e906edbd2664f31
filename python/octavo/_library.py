"""Finds liboctavo.so, checks that torch is the one it was built against, and loads it."""

from __future__ import annotations

import json
import os
import pathlib

import torch

PACKAGE = pathlib.Path(__file__).resolve().parent


def _release(version: str) -> str:
    """A torch version without its local part: "2.11.0" of "2.11.0+cu130"."""
    return version.split("+")[0]


def _candidates() -> list[pathlib.Path]:
    """Folders that may hold liboctavo.so beside build_info.json, the first choice first."""
    chosen = os.environ.get("OCTAVO_BUILD_DIR")
    if chosen:
        return [pathlib.Path(chosen).resolve() / "octavo"]
    folders = [PACKAGE]
    repository = PACKAGE.parents[1]
    if (repository / "octavo" / "ops" / "library.cpp").exists():  # a checkout, not an installation
        folders += [repository / name / "octavo" for name in ("build-cuda", "build")]
    return folders


def find() -> tuple[pathlib.Path, dict]:
    """The library and what its build says of itself: torch, gpu, version.

    Errors: no library in the places looked at (ImportError, which names them).
    """
    for folder in _candidates():
        library = folder / "liboctavo.so"
        if library.exists():
            info = folder / "build_info.json"
            return library, json.loads(info.read_text()) if info.exists() else {}
    places = ", ".join(str(folder) for folder in _candidates())
    raise ImportError(
        f"octavo: expected liboctavo.so in {places}, got none; install the package with pip, build a "
        "checkout with ./run test, or name a build folder with OCTAVO_BUILD_DIR"
    )


def check_torch(built_against: str | None, found: str) -> None:
    """Raises ImportError where torch is not the release the library was built against: C++ classes of
    torch change with every release, and a library of another one crashes instead of explaining itself.
    """
    if built_against is None or _release(built_against) == _release(found):
        return
    raise ImportError(
        f"octavo: this build expects torch {_release(built_against)}, got {found}; install "
        f"torch=={_release(built_against)}, or build octavo against this torch: "
        "pip install --no-build-isolation --force-reinstall --no-deps PATH_TO_OCTAVO"
    )


LIBRARY, BUILD_INFO = find()
check_torch(BUILD_INFO.get("torch"), torch.__version__)
torch.ops.load_library(str(LIBRARY))
ops = torch.ops.octavo
