"""Runs the built command as a user does."""

import json
import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("OCTAVO_BUILD_DIR", REPOSITORY / "build")).resolve() / "apps/octavo/octavo"
SHAKESPEARE = REPOSITORY / "examples/data/tinyshakespeare.txt"

# Milliseconds a step: one block of 32 features.
TINY = {
    "preset": "debug",
    "dim": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "hidden": 48,
    "sequence": 16,
    "batch": 4,
    "steps": 12,
    "warmup_steps": 2,
    "log_every": 4,
    "validation_batches": 2,
    "threads": 1,
}


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    def __repr__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def text_of(argument):
    return argument if isinstance(argument, bytes) else str(argument)


def run(*arguments, text=True, **options):
    done = subprocess.run(
        [COMMAND, *map(text_of, arguments)], capture_output=True, text=text, timeout=120, **options
    )
    return Result(done)


def good(result):
    """Exit code 0 and nothing on stderr; the result."""
    assert result.code == 0, result
    assert result.err == "", result
    return result


def user_error(result, *parts, code=1):
    """One line on stderr that begins with "octavo: " and holds every part."""
    assert result.code == code, result
    lines = result.err.splitlines()
    assert len(lines) == 1, result
    assert lines[0].startswith("octavo: "), result
    assert "Exception raised from" not in lines[0] and "frame #" not in lines[0], result
    for part in parts:
        assert part in lines[0], (part, result)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(SHAKESPEARE.read_bytes()[:20000])
    return path


@pytest.fixture
def config(tmp_path, text_file):
    """config(**keys) writes a configuration of a tiny run and returns its path."""

    def write(name="config.json", **keys):
        path = tmp_path / name
        values = {**TINY, "train_data": str(text_file), "run_dir": str(tmp_path / "run"), **keys}
        path.write_text(json.dumps(values))
        return path

    return write


def losses(run_dir):
    """Step -> training loss; where a step was done twice the later line holds."""
    found = {}
    for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["event"] == "train":
            found[row["step"]] = row["loss"]
    return found


def checkpoints(run_dir):
    return sorted(path.name for path in (Path(run_dir) / "checkpoints").iterdir())
