"""Every slip a user can make: one line on stderr that says what to do, and nothing lost."""

import json
import resource
import shutil
import signal
import struct

import pytest
from conftest import checkpoints, losses, run, user_error


def test_missing_and_empty_data(config, tmp_path):
    user_error(run("train", "--config", config(train_data="")), "train_data")
    user_error(run("train", "--config", config(train_data="/no/such.txt")), "/no/such.txt")
    (tmp_path / "empty.txt").touch()
    user_error(run("train", "--config", config(train_data=str(tmp_path / "empty.txt"))), "empty.txt")
    (tmp_path / "short.txt").write_text("short")
    user_error(run("train", "--config", config(train_data=str(tmp_path / "short.txt"))), "short.txt")
    user_error(run("train", "--config", config(validation_data="/no/held.txt")), "/no/held.txt")
    assert not (tmp_path / "run").exists()  # found before anything is made


def test_config_files(config, tmp_path):
    user_error(run("train", "--config", tmp_path / "none.json"), "none.json", "cannot be read")
    (tmp_path / "bad.json").write_text('{"steps": 3,\n "lr" 1}')
    user_error(run("train", "--config", tmp_path / "bad.json"), "bad.json", "line 2")
    user_error(run("train", "--config", config(wamup_steps=3)), "wamup_steps", "'warmup_steps'")
    user_error(run("train", "--config", config(steps="many")), "steps", "integer", "many")


def test_unknown_recipe_names_the_known_ones(config):
    for command in ["train", "inspect"]:
        user_error(
            run(command, "--config", config(), "--recipe", "rowise"),
            "rowise",
            "'rowwise'",
            "tensorwise, rowwise, rowwise_with_gw_hp, blockwise, mxfp8",
            "high_precision",
        )
    user_error(run("train", "--config", config(), "--recipe", "mxfp8", "--flavour", "fnuz"), "rowwise")
    user_error(run("train", "--config", config(), "--flavour", "mi300"), "auto, ocp, fnuz")
    user_error(
        run("train", "--config", config(), "--recipe", "rowwise", "--filter-fqns", "lm_haed"),
        "lm_haed",
    )


@pytest.mark.parametrize(
    "options, parts",
    [
        (["--heads", 3], ["heads", "3", "dim", "32"]),
        (["--heads", 4, "--kv-heads", 3], ["kv_heads", "3", "heads"]),
        (["--dim", 0], ["dim", "at least 1"]),
        (["--sequence", 99999], ["sequence", "max_sequence"]),
        (["--batch", 0], ["batch", "at least 1"]),
        (["--lr", "fast"], ["lr", "number", "fast"]),
        (["--beta2", 1], ["beta2", "below 1"]),
        (["--preset", "llama9"], ["preset", "llama3-8b"]),
        (["--vocabulary", 64], ["vocabulary"]),  # the text has bytes above 63
    ],
)
def test_values(config, options, parts):
    user_error(run("train", "--config", config(), *options), *parts)


def test_truncated_and_foreign_checkpoints(config, tmp_path):
    assert run("train", "--config", config(steps=2)).code == 0
    whole = tmp_path / "run/checkpoints/step-000002"
    for name in ["model.safetensors", "state.json"]:
        broken = tmp_path / "broken"
        shutil.copytree(whole, broken)
        data = (broken / name).read_bytes()
        (broken / name).write_bytes(data[: len(data) // 2])
        for command in ["eval", "generate", "inspect"]:
            user_error(run(command, broken), name, "truncated")
        (broken / name).write_bytes(b"PK\x03\x04 made by something else, long enough to be a file")
        user_error(run("eval", broken), name)
        (broken / name).unlink()
        user_error(run("eval", broken), "broken")
        shutil.rmtree(broken)
    user_error(run("eval", tmp_path), "holds no checkpoint", "state.json")
    user_error(run("eval", tmp_path / "nowhere"), "nowhere", "no such folder")
    user_error(run("eval", whole / "model.safetensors"), "is a file")
    # Resuming on other sizes: the checkpoint does not fit, and says where.
    user_error(run("train", "--config", config(hidden=64), "--resume"), "mlp", "[48, 32]", "[64, 32]")
    # A truncated optimiser: the run does not start, the checkpoint stays.
    optimizer = whole / "optimizer.safetensors"
    optimizer.write_bytes(optimizer.read_bytes()[:-1])
    user_error(run("train", "--config", config(steps=4), "--resume"), "optimizer.safetensors")
    assert checkpoints(tmp_path / "run") == ["step-000002"]


def test_a_second_run_does_not_overwrite_the_first(config, tmp_path):
    assert run("train", "--config", config(steps=2)).code == 0
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    user_error(run("train", "--config", config(steps=2)), "run_dir", "--overwrite")
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    assert run("train", "--config", config(steps=3), "--overwrite").code == 0
    assert checkpoints(tmp_path / "run") == ["step-000003"]


def limit_files_to(size):
    def set_limit():
        # Python ignores SIGXFSZ and children inherit that; a user's shell does not.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return set_limit


def test_no_space_while_saving_keeps_the_older_checkpoint(config, tmp_path):
    path = config(steps=8, checkpoint_every=2)
    assert run("train", "--config", path, "--steps", 2).code == 0
    run_dir = tmp_path / "run"
    model = run_dir / "checkpoints/step-000002/model.safetensors"
    before, metrics = model.read_bytes(), losses(run_dir)
    # Room for the metrics, not for the model.
    limit = len(before) // 2
    assert (run_dir / "metrics.jsonl").stat().st_size < limit // 2
    result = run("train", "--config", path, "--resume", preexec_fn=limit_files_to(limit))
    user_error(result, "step 4 not saved", "File too large", "step-000002")
    assert checkpoints(run_dir) == ["step-000002"]
    assert model.read_bytes() == before
    assert metrics.items() <= losses(run_dir).items()
    # With room again the run goes on.
    assert run("train", "--config", path, "--resume").code == 0
    assert checkpoints(run_dir)[-1] == "step-000008"


def test_no_space_for_the_metrics(config, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").symlink_to("/dev/full")
    user_error(run("train", "--config", config()), "metrics.jsonl")


def test_no_space_for_the_output():
    with open("/dev/full", "w") as full:
        import subprocess

        from conftest import COMMAND

        done = subprocess.run([COMMAND, "recipes"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr.startswith("octavo: ") and done.stderr.count("\n") == 1


def test_a_loss_that_is_not_finite_stops_the_run_and_loses_nothing(config, tmp_path):
    path = config(steps=50, warmup_steps=0, checkpoint_every=1, clip_norm=0)
    result = run("train", "--config", path, "--lr", "1e30")
    user_error(result, "step", "lr")
    run_dir = tmp_path / "run"
    done = losses(run_dir)
    assert done, "the steps before it are in the metrics"
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    assert checkpoints(run_dir), "and in a checkpoint"
    assert run("inspect", run_dir).code == 0


def test_a_validation_loss_that_is_not_finite_is_an_error(config, tmp_path):
    run_dir = tmp_path / "run"
    path = config(steps=1, warmup_steps=0)
    user_error(run("train", "--config", path, "--lr", "1e18"), "validation loss", "step 1", "lr")
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "train", "checkpoint", "validation"]
    assert lines[-1]["loss"] is None
    assert checkpoints(run_dir) == ["step-000001"]
    assert not (run_dir / "summary.json").exists()
    for option in [[], ["--json"]]:
        result = run("eval", run_dir, *option)
        user_error(result, "validation loss", "step 1", "older checkpoint")
        assert result.out == ""
    # A comparison fails likewise, and keeps what its runs wrote.
    compared = tmp_path / "compared"
    options = ["--recipes", "rowwise", "--lr", "1e18", "--run-dir", compared]
    user_error(run("compare", "--config", path, *options), "validation loss", "step 1")
    assert checkpoints(compared / "high_precision") == ["step-000001"]
    assert not (compared / "summary.json").exists()


def test_a_damaged_newest_checkpoint_says_what_to_remove(config, tmp_path):
    path = config(steps=4, checkpoint_every=2)
    assert run("train", "--config", path).code == 0
    newest = tmp_path / "run/checkpoints/step-000004"
    (newest / "model.safetensors").write_bytes(b"")
    result = run("train", "--config", path, "--resume")
    user_error(result, "model.safetensors", f"remove {newest} and resume again")
    shutil.rmtree(newest)
    assert run("train", "--config", path, "--resume").code == 0
    assert checkpoints(tmp_path / "run") == ["step-000002", "step-000004"]


def test_shards_of_a_larger_vocabulary(config, tmp_path):
    shard = tmp_path / "tokens.bin"
    header = b"OCTAVOTK" + struct.pack("<IIQQ", 1, 2, 2000, 50257)
    shard.write_bytes(header.ljust(256, b"\0") + bytes(4000))
    for key in ["train_data", "validation_data"]:
        user_error(run("train", "--config", config(**{key: str(shard)})), "50257", "256", "vocabulary")
    assert run("train", "--config", config(steps=1)).code == 0
    user_error(run("eval", tmp_path / "run", "--validation-data", shard), "50257", "vocabulary")


def test_folders_that_cannot_be_made(config, tmp_path):
    (tmp_path / "file").touch()
    user_error(run("train", "--config", config(run_dir=str(tmp_path / "file/run"))), "file/run")


def test_prompts(config, tmp_path):
    assert run("train", "--config", config(steps=1)).code == 0
    run_dir = tmp_path / "run"
    user_error(run("generate", run_dir, "--prompt", ""), "--prompt")
    user_error(run("generate", run_dir, "--prompt-tokens", "1,999"), "--prompt-tokens", "999")
