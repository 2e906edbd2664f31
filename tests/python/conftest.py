"""The package under test: python/octavo of this checkout over the library of the build under test, or an
installed one with OCTAVO_TEST_INSTALLED=1."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not os.environ.get("OCTAVO_TEST_INSTALLED"):
    os.environ.setdefault("OCTAVO_BUILD_DIR", str(ROOT / "build"))
    sys.path.insert(0, str(ROOT / "python"))
