"""Every slip a user can make: one line on stderr that says what to do, and nothing lost."""

import fcntl
import json
import os
import resource
import shutil
import signal
import struct
import subprocess

import pytest
from conftest import COMMAND, checkpoints, good, losses, run, user_error


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


def test_config_files_that_are_something_else(config, tmp_path):
    """An answer at once: nothing waits, nothing grows, nothing crashes."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "deep.json").write_text('{"steps": ' + "[" * 1000000 + "]" * 1000000 + "}")
    (tmp_path / "wide.json").write_text(" " * (2**24 + 1))
    for path, part in [
        (tmp_path / "pipe.json", "no regular file"),
        ("/dev/zero", "no regular file"),
        (tmp_path, "no regular file"),
        ("", "cannot be read"),
        (tmp_path / "deep.json", "nested deeper than 64 levels"),
        (tmp_path / "wide.json", "larger than 16 MiB"),
    ]:
        for command in ["train", "inspect", "compare"]:
            user_error(run(command, "--config", path), "config file", str(path), part)


def test_paths_that_are_no_text(config, tmp_path):
    """A run in half of the name, or in a name with other letters, would be another run."""
    user_error(run("train", "--config", config(), "--run-dir", b"a\xffb", cwd=tmp_path), "run_dir", "UTF-8")
    user_error(run("train", "--config", config(run_dir=str(tmp_path / "a\0b"))), "run_dir", "NUL")
    user_error(run("train", "--config", config(train_data="a\0b")), "train_data", "NUL")
    assert not (tmp_path / "a").exists()


def test_options_are_given_once(config, tmp_path):
    twice = "given more than once"
    user_error(run("train", "--config", config(), "--lr", 1, "--lr", 2), "--lr", twice, code=2)
    user_error(run("train", "--config", config(), "--run-dir=a", "--run_dir=b"), "--run-dir", twice, code=2)
    user_error(run("train", "--config", config(), "--resume", "--resume", "false"), "--resume", twice, code=2)
    user_error(run("train", "--config", config(), "--config", config()), "--config", twice, code=2)
    user_error(run("generate", "x", "--seed", 1, "--seed", 2), "--seed", twice, code=2)
    user_error(run("bench", "gemm", "--json", "a", "--json", "b"), "--json", twice, code=2)


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
        (["--threads", 4294967297], ["threads", "at most 1024", "4294967297"]),
        (["--batch", 10**12], ["batch", "at most 1048576", "1000000000000"]),
        (["--steps", "9" * 309], ["steps", "integer", "999...", "(311 characters)"]),
        (["--dim", 2**20, "--layers", 4096], ["model", "GiB", "dim"]),
    ],
)
def test_values(config, options, parts):
    user_error(run("train", "--config", config(), *options), *parts)


def test_data_that_is_truncated_while_training(config, tmp_path, text_file):
    path = config(steps=1000000, log_every=1, checkpoint_every=1)
    process = subprocess.Popen(
        [COMMAND, "train", "--config", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("step "):
            break
    os.truncate(text_file, 100)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1, (process.returncode, error)
    assert error.count("\n") == 1 and str(text_file) in error and "is shorter now" in error
    assert checkpoints(tmp_path / "run")


def test_a_batch_that_no_memory_holds(config, tmp_path):
    with open(tmp_path / "zeros.txt", "wb") as file:
        file.truncate(2**21)
    sizes = {key: 2**20 for key in ["max_sequence", "sequence", "batch"]}
    path = config(train_data=str(tmp_path / "zeros.txt"), **sizes)
    user_error(run("train", "--config", path), "out of memory", "to allocate", "make batch")


def test_checkpoints_that_are_something_else(config, tmp_path):
    path = config(steps=4, checkpoint_every=2)
    assert run("train", "--config", path).code == 0
    folder = tmp_path / "run/checkpoints"
    state = folder / "step-000004/state.json"
    whole = state.read_text()
    for text, part in [
        ("[" * 1000000, "nested deeper than 64 levels"),
        (whole.replace('"step": 4', '"step": -4'), "step -4"),
        (whole.replace('"step": 4', '"step": 2'), "step 2"),
        (whole.replace('"step": 4', '"step": 4000000000000000000'), "step 4000000000000000000"),
    ]:
        state.write_text(text)
        for command in [["train", "--config", path, "--resume"], ["eval", tmp_path / "run"]]:
            user_error(run(*command), "step-000004/state.json", part)
    state.unlink()
    os.mkfifo(state)
    user_error(run("train", "--config", path, "--resume"), "state.json", "no regular file")
    state.unlink()
    user_error(run("train", "--config", path, "--resume"), "step-000004: holds no checkpoint", "no state.json", "remove")
    assert checkpoints(tmp_path / "run") == ["step-000002", "step-000004"]
    shutil.rmtree(folder)
    folder.touch()
    user_error(run("train", "--config", path, "--resume"), "checkpoints", "cannot list")


def test_a_metrics_file_that_is_a_pipe(config, tmp_path):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run/metrics.jsonl")
    for option in [[], ["--resume"]]:
        user_error(run("train", "--config", config(), *option), "metrics.jsonl", "named pipe")


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


def test_overwrite_leaves_a_run_that_still_writes(config, tmp_path):
    assert run("train", "--config", config(steps=2)).code == 0
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    with open(tmp_path / "run/.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        user_error(run("train", "--config", config(steps=3), "--overwrite"), "in use by another run")
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    assert checkpoints(tmp_path / "run") == ["step-000002"]
    assert run("train", "--config", config(steps=3), "--overwrite").code == 0


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
        done = subprocess.run([COMMAND, "recipes"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr.startswith("octavo: ") and done.stderr.count("\n") == 1


def test_a_diverging_run_stops_and_can_go_back(config, tmp_path):
    path = config(steps=6, warmup_steps=0, checkpoint_every=2, keep_checkpoints=3, clip_norm=0)
    run_dir = tmp_path / "run"
    assert run("train", "--config", path).code == 0
    before = losses(run_dir)
    # lr 1e12 gives numbers for a while, 1e30 a loss of ln 256 from parameters that mean nothing.
    for lr in ["1e12", "1e30"]:
        diverging = ["--lr", lr, "--steps", 50, "--keep-checkpoints", 50]
        result = run("train", "--config", path, "--resume", *diverging)
        user_error(result, "lr", "resume_step", "2, 4, 6")
        for line in (run_dir / "metrics.jsonl").read_text().splitlines():
            json.loads(line)
    user_error(run("train", "--config", path, "--resume-step", 3), "resume_step", "no checkpoint of step 3", "2, 4, 6")
    result = good(run("train", "--config", path, "--resume-step", 2))
    assert "step-000002; removing those of step 4, 6" in result.out
    assert checkpoints(run_dir) == ["step-000002", "step-000004", "step-000006"]
    assert losses(run_dir) == {**losses(run_dir), **before}  # the bits of the run that did not diverge
    assert run("inspect", run_dir).code == 0


def test_parameters_that_overflow_are_an_error_and_not_saved(config, tmp_path):
    result = run("train", "--config", config(warmup_steps=0, checkpoint_every=1), "--lr", "1e30")
    user_error(result, "parameters", "norm", "step 1", "diverged", "lr")
    assert list(losses(tmp_path / "run")) == [1]
    assert not (tmp_path / "run/checkpoints").exists() and not (tmp_path / "run/summary.json").exists()


def test_a_validation_loss_that_is_not_finite_is_an_error(config, tmp_path):
    run_dir = tmp_path / "run"
    path = config(steps=1, warmup_steps=0)
    user_error(run("train", "--config", path, "--lr", "1e13"), "validation loss", "step 1", "lr")
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
    options = ["--recipes", "rowwise", "--lr", "1e13", "--run-dir", compared]
    user_error(run("compare", "--config", path, *options), "validation loss", "step 1")
    assert checkpoints(compared / "high_precision") == ["step-000001"]
    assert not (compared / "summary.json").exists()


def test_resuming_a_finished_run_keeps_its_figures(config, tmp_path):
    path = config(steps=2)
    assert run("train", "--config", path).code == 0
    before = json.loads((tmp_path / "run/summary.json").read_text())
    assert run("train", "--config", path, "--resume").code == 0
    after = json.loads((tmp_path / "run/summary.json").read_text())
    for key in ["train_loss", "seconds_per_step", "tokens_per_second", "validation_loss"]:
        assert after[key] == before[key] and after[key] > 0


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
    (tmp_path / "file").write_text("kept")
    for command in ["train", "compare"]:
        for run_dir in [tmp_path / "file", tmp_path / "file/a/run"]:
            result = run(command, "--config", config(run_dir=str(run_dir)))
            user_error(result, "run_dir: expected a folder", str(run_dir), "is a file; name another run_dir")
            assert result.out == ""  # before the model is made
    assert (tmp_path / "file").read_text() == "kept"
    read_only = run("train", "--config", config(run_dir="/proc/octavo"))
    user_error(read_only, "run_dir: cannot", "/proc", "name another run_dir")


def test_a_recipe_that_is_named_twice(config):
    for command in [["bench", "step", "--preset", "debug"], ["bench", "linear"], ["bench", "moe"],
                    ["compare", "--config", config()]]:
        result = run(*command, "--recipes", "rowwise,mxfp8,rowwise")
        user_error(result, "--recipes: rowwise is given twice", "name it once")


def test_usage_errors_name_the_command_that_was_asked():
    user_error(run("bench", "step", "--roundz", 1), "unknown option --roundz", "octavo bench step --help", code=2)
    user_error(run("bench", "gemm", "--repetitions", "x"), "octavo bench gemm --help", code=2)
    user_error(run("bench", "stepp"), "unknown command stepp", "'step'", "octavo bench --help", code=2)
    user_error(run("baseline", "chek"), "unknown command chek", "'check'", "octavo baseline --help", code=2)


def test_prompts(config, tmp_path):
    assert run("train", "--config", config(steps=1)).code == 0
    run_dir = tmp_path / "run"
    user_error(run("generate", run_dir, "--prompt", ""), "--prompt")
    for tokens, part in [("1,999", "999"), ("1,-1", "-1"), ("1,x", "x"), ("9" * 30, "999")]:
        user_error(run("generate", run_dir, "--prompt-tokens", tokens), "--prompt-tokens", "from 0 to 255", part, code=2)
    both = run("generate", run_dir, "--prompt", "a", "--prompt-tokens", "1")
    user_error(both, "--prompt", "--prompt-tokens", "excludes", code=2)


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--seed", -1], "an integer from 0 to 18446744073709551615, got '-1'"),
        (["--seed", 2**64], "got '18446744073709551616'"),
        (["--tokens", "9" * 309], "an integer from 0 to 1000000000, got '999"),
        (["--tokens", "1.5"], "got '1.5'"),
        (["--temperature", "nan"], "a number from 0 to 1e+06, got 'nan'"),
        (["--temperature", "9" * 309], "(309 characters)"),
        (["--top-k", -1], "got '-1'"),
        (["--context", "0x10"], "got '0x10'"),
    ],
)
def test_numbers_of_options(options, expected):
    result = run("generate", "nowhere", *options)
    user_error(result, options[0], expected, code=2)
    assert len(result.err) < 200


def test_numbers_of_measuring_options():
    for command in [["bench", "gemm"], ["bench", "linear"], ["baseline", "check"]]:
        user_error(run(*command, "--threads", 4294967297), "--threads", "from 0 to 1024", code=2)
    user_error(run("bench", "quantize", "--repetitions", 0), "--repetitions", "from 1 to", code=2)
