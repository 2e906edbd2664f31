"""docs/training.md does what it says: its writer, its configuration, its commands."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("OCTAVO_BUILD_DIR", REPOSITORY / "build")).resolve() / "apps/octavo/octavo"
# Runs this small are faster so, much where other tests run beside them.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
DOCUMENT = (REPOSITORY / "docs/training.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The document read from top to bottom, in an empty folder with a text."""
    path = tmp_path_factory.mktemp("training")
    text = (REPOSITORY / "examples/data/tinyshakespeare.txt").read_bytes()[:20000]
    (path / "text.txt").write_bytes(text)
    [configuration], [writer] = blocks("json"), blocks("python")
    (path / "first.json").write_text(configuration)
    before = Path.cwd()
    os.chdir(path)
    try:
        exec(compile(writer, "docs/training.md", "exec"), {})
    finally:
        os.chdir(before)
    for block in blocks("sh"):
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "octavo", line
            done = subprocess.run([COMMAND, *arguments], cwd=path, capture_output=True, timeout=120,
                                  env=ENVIRONMENT)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
    return path


def events(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_writers_shard_trains(folder):
    assert (folder / "tokens.bin").stat().st_size == 256 + 2 * 20000
    run = events(folder / "runs/first")
    assert [row["step"] for row in run if row["event"] == "train"] == [1, 2, 3, 4]
    start = next(row for row in run if row["event"] == "start")
    assert start["config"]["train_data"] == "tokens.bin"
    assert start["config"]["lr"] == 1e-3, "options win over the file"


def test_a_shard_trains_as_the_text_it_was_made_of(folder):
    """Tokens are read from behind the header, little-endian, in order."""
    arguments = ["train", "--config", "first.json", "--lr", "1e-3", "--run-dir", "runs/text"]
    subprocess.run([COMMAND, *arguments, "--train-data", "text.txt"], cwd=folder, check=True,
                   capture_output=True, timeout=120, env=ENVIRONMENT)
    losses = [[row["loss"] for row in events(folder / run) if row["event"] == "train"][:2]
              for run in ("runs/first", "runs/text")]
    assert losses[0] == losses[1]


def test_the_table_of_events(folder):
    table = re.search(r"\| event \| other fields \|\n\|---\|---\|\n(.*?)\n\n", DOCUMENT, re.DOTALL)
    documented = {}
    for line in table[1].splitlines():
        names, fields = (cell.strip() for cell in line.strip("|").split("|"))
        fields = re.sub(r"\(.*?\)", "", fields)
        for name in names.split(", "):
            documented[name] = {f.strip() for f in fields.split(",") if f.strip()}
    written = {}
    for row in events(folder / "runs/first") + events(folder / "runs/second"):
        written.setdefault(row["event"], set()).update(set(row) - {"event", "step"})
    assert set(written) == set(documented)
    for event, fields in documented.items():
        assert fields <= written[event], event


def test_the_files_of_a_run(folder):
    run = folder / "runs/first"
    assert (run / "summary.json").is_file()
    step = run / "checkpoints/step-000004"
    assert {file.name for file in step.iterdir()} == {
        "model.safetensors", "optimizer.safetensors", "state.json"}
    rows = json.loads((folder / "runs/compared/summary.json").read_text())
    assert [row["recipe"] for row in rows][:3] == ["high_precision", "rowwise", "mxfp8"]
    assert rows[3]["flavour"] == "fnuz"
