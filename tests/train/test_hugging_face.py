"""Hugging Face folders in and out: `octavo train --init DIR` and `octavo export`.

Small random models of each family are made by transformers, read by octavo, and their logits
compared; exported folders are opened by transformers again.
"""

import json

import pytest
import torch
from hugging_face import (BOUND, CASES, REPOSITORY, SIZES, TEXT, TOKENS, logits_of, octavo, octavo_logits,
                          random_model, relative_error, train_one_step, transformers)
from safetensors.torch import load_file


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory):
    """(case, folder, transformers' logits)"""
    model = random_model(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "model"
    model.save_pretrained(folder)
    return request.param, folder, logits_of(model, TOKENS)


def test_logits_of_a_hugging_face_folder(saved, tmp_path):
    _, folder, expected = saved
    got = octavo_logits(folder, TOKENS, tmp_path)
    assert got.dtype == torch.float32 and got.shape == expected.shape
    assert relative_error(got, expected) <= BOUND


# Sizes that a config.json needs; transformers has a value of its own for everything else.
NEEDED = {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads"}
EXPERTS_NEED = {"num_experts_per_tok", "num_experts", "num_local_experts", "n_routed_experts",
                "moe_intermediate_size", "n_shared_experts"}


@pytest.mark.parametrize("case", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "dots1"])
def test_fields_left_out_are_what_transformers_takes(case, tmp_path):
    family, extra = CASES[case]
    sizes = {k: v for k, v in {**SIZES, **extra}.items() if k in NEEDED | EXPERTS_NEED}
    model = random_model(case, sizes)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    kept = {k: v for k, v in config.items() if k in NEEDED | EXPERTS_NEED}
    (folder / "config.json").write_text(json.dumps(kept))
    assert relative_error(octavo_logits(folder, TOKENS, tmp_path), logits_of(model, TOKENS)) <= BOUND


def test_export_opens_in_transformers(saved, tmp_path):
    case, folder, expected = saved
    run = train_one_step(folder, tmp_path)
    octavo("export", run, tmp_path / "out")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    assert type(model).__name__ == CASES[case][0].replace("Mistral", "Llama") + "ForCausalLM"
    assert relative_error(logits_of(model.eval(), TOKENS), expected) <= BOUND
    # and octavo reads what it wrote
    assert relative_error(octavo_logits(tmp_path / "out", TOKENS, tmp_path), expected) <= BOUND


@pytest.mark.parametrize("case", ["qwen2", "mixtral"])
def test_shards_in_and_out(case, tmp_path):
    model = random_model(case)
    model.save_pretrained(tmp_path / "in", max_shard_size="60KB")
    assert len(list((tmp_path / "in").glob("model-*.safetensors"))) > 2
    expected = logits_of(model, TOKENS)
    assert relative_error(octavo_logits(tmp_path / "in", TOKENS, tmp_path), expected) <= BOUND
    run = train_one_step(tmp_path / "in", tmp_path)
    octavo("export", run, tmp_path / "out", "--max-shard-size", "50KB")
    shards = sorted((tmp_path / "out").glob("model-*.safetensors"))
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert len(shards) > 2
    assert index["weight_map"] == {name: s.name for s in shards for name in load_file(s)}
    written = {name: t for s in shards for name, t in load_file(s).items()}
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in written.values())
    for shard in shards:  # none larger than asked, but for one tensor that is
        tensors = load_file(shard)
        assert sum(t.nbytes for t in tensors.values()) <= 50_000 or len(tensors) == 1
    reopened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert relative_error(logits_of(reopened, TOKENS), expected) <= BOUND


def test_bf16_file_into_masters_and_back(tmp_path):
    """The masters begin with the file's own values, and those come out again."""
    model = random_model("qwen3")
    expected = dict(model.state_dict())
    model.save_pretrained(tmp_path / "fp32")
    run = train_one_step(tmp_path / "fp32", tmp_path, "--dtype", "bfloat16", "--master-weights")
    octavo("export", run, tmp_path / "out32", "--dtype", "float32")
    octavo("export", run, tmp_path / "out16")  # as trained
    fp32 = load_file(tmp_path / "out32/model.safetensors")
    bf16 = load_file(tmp_path / "out16/model.safetensors")
    assert sorted(fp32) == sorted(bf16) == sorted(expected)
    for name, value in expected.items():
        assert torch.equal(fp32[name], value), name
        assert bf16[name].dtype == torch.bfloat16 and torch.equal(bf16[name], value.bfloat16()), name
    # and so do the masters of a run that begins with this one
    (tmp_path / "second").mkdir()
    second = train_one_step(run, tmp_path / "second", "--dtype", "bfloat16", "--master-weights")
    octavo("export", second, tmp_path / "out32second", "--dtype", "float32")
    for name, value in load_file(tmp_path / "out32second/model.safetensors").items():
        assert torch.equal(value, expected[name]), name
    # a bf16 file into fp32 parameters: the same values
    (tmp_path / "again").mkdir()
    run = train_one_step(tmp_path / "out16", tmp_path / "again")
    octavo("export", run, tmp_path / "out32again")
    again = load_file(tmp_path / "out32again/model.safetensors")
    assert all(torch.equal(again[name], bf16[name].float()) for name in bf16)


def test_an_octavo_run_is_a_beginning_too(tmp_path):
    random_model("qwen2").save_pretrained(tmp_path / "in")
    run = train_one_step(tmp_path / "in", tmp_path)
    first = load_file(next((run / "checkpoints").iterdir()) / "model.safetensors")
    (tmp_path / "second").mkdir()
    second = train_one_step(run, tmp_path / "second", "--recipe", "rowwise")
    got = load_file(next((second / "checkpoints").iterdir()) / "model.safetensors")
    assert sorted(got) == sorted(first) and all(torch.equal(got[n], first[n]) for n in first)


def test_fine_tuning_learns(tmp_path):
    """From the folder's weights the loss falls, and the checkpoint resumes without the folder's."""
    random_model("qwen3").save_pretrained(tmp_path / "in")
    octavo("train", "--init", tmp_path / "in", "--train-data", TEXT, "--sequence", 32, "--batch", 8,
           "--steps", 30, "--lr", 3e-3, "--recipe", "rowwise", "--threads", 1, "--run-dir",
           tmp_path / "run", "--validation-batches", 2)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["event"] == "train"]
    assert losses[-1] < losses[0] - 0.5
    (tmp_path / "in/model.safetensors").unlink()
    assert "validation_loss" in octavo("eval", tmp_path / "run", "--json").stdout


def test_the_example_configuration(tmp_path):
    """examples/configs/finetune.json on the CPU, with everything else as it stands there."""
    random_model("qwen3").save_pretrained(tmp_path / "in")
    octavo("train", "--config", REPOSITORY / "examples/configs/finetune.json", "--init", tmp_path / "in",
           "--train-data", TEXT, "--device", "cpu", "--sequence", 16, "--steps", 2, "--validation-batches", 1,
           "--threads", 1, "--run-dir", tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["event"] for row in rows if row["event"] in ("train", "fp8")] == ["train", "fp8", "train"]
    assert rows[0]["config"]["head_dim"] == 16 and rows[0]["config"]["qk_norm"] is True


def test_tokenizer_and_token_ids_go_along(tmp_path):
    random_model("llama").save_pretrained(tmp_path / "in")
    (tmp_path / "in/tokenizer.json").write_text('{"a": 1}')
    config = json.loads((tmp_path / "in/config.json").read_text()) | {"eos_token_id": [7, 9]}
    (tmp_path / "in/config.json").write_text(json.dumps(config))
    run = train_one_step(tmp_path / "in", tmp_path)
    said = octavo("export", run, tmp_path / "out").stdout
    assert "as llama" in said and "tokenizer.json" in said
    assert (tmp_path / "out/tokenizer.json").read_text() == '{"a": 1}'
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == [7, 9]
