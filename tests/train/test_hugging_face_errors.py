"""Hugging Face folders that cannot be read or written: each an error that names file and field."""

import json
import subprocess

import pytest
import torch
from hugging_face import (BOUND, COMMAND, TEXT, TOKENS, begin, logits_of, octavo, octavo_error, octavo_logits,
                          random_model, relative_error, train_one_step)
from safetensors.torch import load_file, save_file


def test_a_router_bias_stays_fp32(tmp_path):
    """Rounded to bf16 with the weights it would choose other experts."""
    model = random_model("dots1")
    model.save_pretrained(tmp_path / "in")
    octavo("export", train_one_step(tmp_path / "in", tmp_path), tmp_path / "out", "--dtype", "bfloat16")
    written = load_file(tmp_path / "out/model.safetensors")
    biases = [name for name in written if name.endswith("e_score_correction_bias")]
    assert biases and all(torch.equal(written[name], model.state_dict()[name]) for name in biases)
    assert {t.dtype for name, t in written.items() if name not in biases} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_of_a_folder(dtype, tmp_path):
    random_model("qwen2").to(dtype).save_pretrained(tmp_path / "in")
    octavo("export", train_one_step(tmp_path / "in", tmp_path), tmp_path / "out")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
    assert {t.dtype for t in before.values()} == {dtype}
    assert all(torch.equal(after[name], value.float()) for name, value in before.items())


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("errors") / "llama"
    random_model("llama").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(llama_folder, tmp_path):
    """A copy to spoil."""
    copy = tmp_path / "spoilt"
    copy.mkdir()
    for file in llama_folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.mark.parametrize("change, parts", [
    ({"model_type": "gpt2"}, ['"model_type" is "gpt2"', "llama", "qwen3_moe"]),
    ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, ['"kv_lora_rank" is 512', "attention"]),
    ({"hidden_act": "gelu"}, ['"hidden_act" is "gelu"', '"silu"']),
    ({"attention_bias": True}, ['"attention_bias" is true', "false"]),
    ({"mlp_bias": True}, ['"mlp_bias" is true']),
    ({"quantization_config": {"quant_method": "fp8"}}, ['"quantization_config"', "bf16"]),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
     ['"rope_parameters.rope_type" is "yarn"', "llama3"]),
    ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
     ['"rope_scaling.type" is "dynamic"']),
    ({"partial_rotary_factor": 0.5}, ['"partial_rotary_factor" is 0.5']),
    ({"hidden_size": None}, ['"hidden_size" is missing']),
    ({"hidden_size": "wide"}, ['"hidden_size" is "wide"', "an integer"]),
    ({"num_key_value_heads": 3}, ["config.json", "kv_heads is 3", "divide"]),
    ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
      "sliding_window": 32}, ['"sliding_window" is 32']),
    ({"model_type": "dots1", "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
      "moe_intermediate_size": 32, "n_shared_experts": 1}, ['"n_group" is 2']),
    ({"layer_types": ["full_attention", "sliding_attention"]}, ['"layer_types"', "full_attention"]),
])
def test_config_that_cannot_be_expressed(folder, tmp_path, change, parts):
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    begin(folder, tmp_path, folder / "config.json", *parts)


def test_weights_that_do_not_fit(folder, tmp_path):
    path = folder / "model.safetensors"
    whole = load_file(path)

    def spoil(**changes):
        tensors = {**whole, **{k: v for k, v in changes.items() if v is not None}}
        save_file({k: v for k, v in tensors.items() if changes.get(k, 0) is not None}, path)

    q = "model.layers.1.self_attn.q_proj.weight"
    spoil(**{q: None})
    begin(folder, tmp_path, "no tensor", q)
    spoil(**{q: torch.zeros(48, 32)})
    begin(folder, tmp_path, path, q, "[48, 32]", "[48, 48]")
    spoil(**{q: torch.zeros(48, 48, dtype=torch.int8)})
    begin(folder, tmp_path, path, q, "fp32, bf16 or fp16")
    spoil(**{"model.layers.1.self_attn.q_proj.bias": torch.zeros(48)})
    begin(folder, tmp_path, "no place for", "q_proj.bias", path)
    spoil(**{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(6)})  # old files have it
    train_one_step(folder, tmp_path)


def test_a_second_copy_of_a_tied_head(tmp_path):
    """Taken where it has the embedding's values; another head is an error and not left out."""
    folder = tmp_path / "in"
    model = random_model("llama_tied")
    model.save_pretrained(folder)
    embedding = model.model.embed_tokens.weight.detach()
    whole = load_file(folder / "model.safetensors")
    save_file({**whole, "lm_head.weight": embedding + 1}, folder / "model.safetensors")
    begin(folder, tmp_path, "no place for", "lm_head.weight", "tie_word_embeddings false")
    save_file({**whole, "lm_head.weight": embedding.clone()}, folder / "model.safetensors")
    assert relative_error(octavo_logits(folder, TOKENS, tmp_path), logits_of(model, TOKENS)) <= BOUND


def test_damaged_files(folder, tmp_path):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    begin(folder, tmp_path, path, "truncated")
    path.write_bytes(data[:20])
    begin(folder, tmp_path, path, "truncated")
    path.write_bytes(b"\0" * 100)
    begin(folder, tmp_path, path, "not a safetensors file")
    path.unlink()
    begin(folder, tmp_path, folder, "model.safetensors.index.json")
    (folder / "config.json").write_text("{")
    begin(folder, tmp_path, folder / "config.json", "not JSON")
    begin(tmp_path / "nowhere", tmp_path, "no such folder")


def test_damaged_index(tmp_path):
    folder = tmp_path / "in"
    random_model("llama").save_pretrained(folder, max_shard_size="60KB")
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    name, shard = next(iter(index["weight_map"].items()))
    other = next(s for s in index["weight_map"].values() if s != shard)
    for change, parts in [
        ({name: "../elsewhere.safetensors"}, [index_path, name]),
        ({name: "model-9.safetensors"}, ["model-9.safetensors", "not there"]),
        ({name: other}, [index_path, name, other]),
    ]:
        index_path.write_text(json.dumps({"weight_map": index["weight_map"] | change}))
        begin(folder, tmp_path, *parts)
    index_path.write_text("[]")
    begin(folder, tmp_path, index_path, "weight_map")


def test_export_refuses_what_no_model_type_expresses(tmp_path):
    def run_of(name, *options):
        run = tmp_path / name
        octavo("train", "--preset", "debug-moe", "--train-data", TEXT, "--sequence", 16, "--batch", 1,
               "--steps", 1, "--validation-batches", 1, "--threads", 1, "--run-dir", run, *options)
        return run

    octavo_error("export", run_of("bias"), tmp_path / "out", parts=["balance", '"bias"'])
    octavo_error("export", run_of("every", "--balance", "loss"), tmp_path / "out",
                 parts=["moe_every is 2", "deepseek has 1"])
    assert not (tmp_path / "out").exists()
    # DeepSeek-MoE's own model type: transformers has no class for it, octavo reads it again.
    deepseek = run_of("deepseek", "--balance", "loss", "--moe-every", 1, "--dense-first", 1)
    octavo("export", deepseek, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "deepseek"
    (tmp_path / "again").mkdir()
    again = train_one_step(tmp_path / "out", tmp_path / "again")
    octavo("export", again, tmp_path / "out2")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "out2"))
    assert "model.layers.1.mlp.experts.3.gate_proj.weight" in first
    assert sorted(first) == sorted(second) and all(torch.equal(first[n], second[n]) for n in first)


def test_export_is_whole_or_absent(llama_folder, tmp_path):
    run = train_one_step(llama_folder, tmp_path)
    out = tmp_path / "exports/out"
    out.parent.mkdir()
    # A file-size limit stands for a full disk.
    done = subprocess.run(["sh", "-c", f"ulimit -f 100; exec {COMMAND} export {run} {out}"],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "model.safetensors" in done.stderr, done
    assert "not written" in done.stderr
    assert list(out.parent.iterdir()) == []
    out.mkdir()
    octavo("export", run, out)  # an empty folder is as good as none
    octavo_error("export", run, out, parts=[out, "is there already"])
    assert sorted(p.name for p in out.parent.iterdir()) == ["out"]


def test_bad_sizes_are_usage_errors(tmp_path):
    for size in ("", "5XB", "-1GB", "GB", "0"):
        done = octavo("export", tmp_path, tmp_path / "out", "--max-shard-size", size, code=2)
        assert "--max-shard-size" in done.stderr
