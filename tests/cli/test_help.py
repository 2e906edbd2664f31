"""What the command says about itself."""

import json
import re

from conftest import REPOSITORY, run, user_error

COMMANDS = ["train", "compare", "eval", "generate", "export", "inspect", "recipes", "bench", "baseline"]


def test_alone_prints_short_help_with_examples():
    result = run()
    assert result.code == 0, result
    assert "Examples:" in result.out and "octavo train" in result.out
    listed = result.out[result.out.index("Subcommands:") :].splitlines()[1:]
    assert [line.split()[0] for line in listed if re.match("  [a-z]", line)] == COMMANDS, result
    assert len(result.out.splitlines()) < 40, result


def test_version():
    result = run("--version")
    assert result.code == 0 and result.out.startswith("octavo 0."), result


def test_help_lists_every_key_once_with_its_default(config):
    text = run("train", "--help").out
    keys = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert len(keys) == len(set(keys))
    for key in ["--recipe", "--run-dir", "--lr", "--kv-heads", "--min-lr-fraction", "--resume"]:
        assert key in keys, text
    assert "[0.003]" in text and "[auto]" in text
    assert "_" not in "".join(keys)


def test_every_subcommand_has_help():
    for command in [[name] for name in COMMANDS] + [
        ["bench", "quantize"],
        ["bench", "gemm"],
        ["bench", "linear"],
        ["baseline", "check"],
        ["baseline", "write"],
    ]:
        result = run(*command, "--help")
        assert result.code == 0 and command[-1] in result.out, result


def test_examples_leave_the_demos_folder_alone():
    """A run in runs/demo would take the place of the comparison that ./run demo leaves there."""
    demo = json.loads((REPOSITORY / "examples/configs/demo.json").read_text())
    assert "run_dir" not in demo
    assert '--run-dir "runs/$command"' in (REPOSITORY / "run").read_text()
    for text in [run().out, (REPOSITORY / "README.md").read_text()]:
        examples = re.findall(r"octavo (train|eval|generate) (.*)", text)
        found = {name for name, rest in examples if "runs/first" in rest}
        assert found == {"train", "eval", "generate"}, examples
        assert not [rest for _, rest in examples if re.search("runs/(?!first)", rest)], examples


def test_usage_errors_are_one_line_and_exit_2():
    user_error(run("tarin"), "unknown command tarin", "'train'", code=2)
    user_error(run("train", "--bacth", "3"), "--bacth", "'--batch'", "octavo train --help", code=2)
    user_error(run("train", "--warmup_step=3"), "'--warmup-steps'", code=2)
    user_error(run("train", "--batch"), "--batch", code=2)
    user_error(run("train", "stray"), "stray", code=2)
    user_error(run("eval"), "CHECKPOINT", code=2)
    user_error(run("generate", "x", "--top-k", "-1"), "--top-k", code=2)


def test_recipes_come_from_the_code():
    result = run("recipes")
    assert result.code == 0, result
    for word in ["rowwise_with_gw_hp", "blockwise", "e4m3fnuz", "mxfp8_cublas", "high_precision"]:
        assert word in result.out, result


def test_inspect_a_preset(config):
    text = run("inspect", "llama3-8b", "--recipe", "rowwise").out
    assert "8,030,261,248" in text
    assert "224 of 225 linears in FP8" in text
    assert "lm_head" in text
    report = json.loads(run("inspect", "llama3-8b", "--recipe", "rowwise", "--json").out)
    assert report["parameters"]["total"] == 8030261248
    linears = {row["name"]: row for row in report["layers"] if row["kind"] == "Linear"}
    assert len(linears) == 225
    assert linears["model.layers.31.mlp.down_proj"]["fp8"] is True
    assert linears["lm_head"]["fp8"] is False and linears["lm_head"]["reason"]
    assert all(product["runs"] == "emulated" for product in report["products"])
    assert all(product["backend"] == "reference" for product in report["products"])
    assert report["fast_accumulation"] == "forward" and "fast accumulation forward" in text
    assert text.count("emulated (reference backend) on cpu") == 3


def test_inspect_says_native_emulated_or_high_precision():
    def runs(recipe, architecture):
        result = run("inspect", "--recipe", recipe, "--architecture", architecture, "--json")
        return [product["runs"] for product in json.loads(result.out)["products"]]

    assert runs("rowwise", "sm_90") == ["native"] * 3
    assert runs("mxfp8", "sm_90") == ["emulated"] * 3
    assert runs("rowwise", "gfx942:sramecc+:xnack-") == ["native"] * 3
    assert runs("rowwise(flavour=fnuz)", "sm_90") == ["emulated"] * 3
    assert runs("rowwise_with_gw_hp", "sm_90") == ["native", "native", "high precision"]
    assert runs("rowwise_with_gw_hp", "cpu") == ["emulated", "emulated", "high precision"]
    text = run("inspect", "--recipe", "rowwise_with_gw_hp", "--architecture", "sm_90").out
    assert text.count("native (cublaslt backend) on sm_90") == 2
    assert text.count("high precision on sm_90") == 1


def test_inspect_reads_a_configuration(config):
    path = config(layers=2, recipe="mxfp8", sequence=32)
    report = json.loads(run("inspect", "--config", path, "--sequence", 8, "--json").out)
    assert report["recipe"] == "mxfp8" and report["layers_converted"] == 14
    assert report["flops_per_token"]["sequence"] == 8
    plain = json.loads(run("inspect", "--config", path, "--recipe=high_precision", "--json").out)
    assert plain["layers_converted"] == 0
    assert plain["memory_bytes"]["total"] == 4 * 4 * plain["parameters"]["total"]


def test_inspect_bad_targets(tmp_path):
    user_error(run("inspect", "llama-8b"), "llama-8b", "'llama3-8b'")
    user_error(run("inspect", tmp_path), "holds no checkpoint")
    user_error(run("inspect", "--architecture", "sm_91"), "sm_91", "sm_90")
