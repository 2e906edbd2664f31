"""Loads the operator library of the build under test, once for all tests of this folder."""

import os
import pathlib

import torch

BUILD = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", pathlib.Path(__file__).parents[2] / "build"))
torch.ops.load_library(str(BUILD / "octavo" / "liboctavo.so"))
