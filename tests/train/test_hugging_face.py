"""Hugging Face folders in and out: `octavo train --init DIR` and `octavo export`.

Small random models of each family are made by transformers, read by octavo, and their logits
compared; exported folders are opened by transformers again.
"""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed: pip install transformers", allow_module_level=True)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import transformers  # noqa: E402

BUILD = Path(os.environ.get("OCTAVO_BUILD_DIR", "build")).resolve()
COMMAND = BUILD / "apps/octavo/octavo"
REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = REPOSITORY / "examples/data/tinyshakespeare.txt"

SIZES = dict(vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             rms_norm_eps=1e-5)
ROPE = dict(rope_type="default", rope_theta=10000.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
EXPERTS = dict(num_experts_per_tok=2)
CASES = {
    "llama": ("Llama", dict(rope_parameters=ROPE)),
    "llama_tied": ("Llama", dict(tie_word_embeddings=True, rope_parameters=ROPE)),
    "llama3_rope": ("Llama", dict(rope_parameters=LLAMA3)),
    "linear_rope": ("Llama", dict(rope_parameters=dict(ROPE, rope_type="linear", factor=4.0))),
    "llama_head_dim": ("Llama", dict(head_dim=20, rope_parameters=ROPE)),
    "mistral": ("Mistral", dict(sliding_window=None, rope_parameters=ROPE)),
    "qwen2": ("Qwen2", dict(rope_parameters=ROPE)),
    "qwen3": ("Qwen3", dict(head_dim=16, rope_parameters=ROPE)),
    "mixtral": ("Mixtral", dict(EXPERTS, num_local_experts=4, rope_parameters=ROPE)),
    "qwen3_moe": ("Qwen3Moe", dict(EXPERTS, num_experts=6, moe_intermediate_size=32, head_dim=16,
                                   norm_topk_prob=True, mlp_only_layers=[0], rope_parameters=ROPE)),
    "dots1": ("Dots1", dict(EXPERTS, n_routed_experts=6, n_shared_experts=2,
                            moe_intermediate_size=32, first_k_dense_replace=1, norm_topk_prob=True,
                            routed_scaling_factor=2.5, rope_parameters=ROPE)),
}


def relative_error(got, expected):
    """Norm of the difference over the norm; NaN stays NaN."""
    return ((got.double() - expected.double()).norm() / expected.double().norm()).item()


def octavo(*arguments, code=0):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def octavo_error(*arguments, parts=()):
    error = octavo(*arguments, code=1).stderr
    assert error.startswith("octavo: ") and len(error.splitlines()) == 1, error
    for part in parts:
        assert str(part) in error, (part, error)


def octavo_logits(folder, tokens, tmp_path):
    save_file({"tokens": tokens}, tmp_path / "tokens.safetensors")
    environment = {"OCTAVO_DUMP_INIT": folder, "OCTAVO_DUMP_TOKENS": tmp_path / "tokens.safetensors",
                   "OCTAVO_DUMP_LOGITS": tmp_path / "logits.safetensors", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [BUILD / "tests/test_train", "--gtest_filter=HuggingFaceDump.Logits"], capture_output=True,
        text=True, env={**os.environ, **{k: str(v) for k, v in environment.items()}})
    assert done.returncode == 0 and "SKIPPED" not in done.stdout, done.stdout + done.stderr
    return load_file(tmp_path / "logits.safetensors")["logits"]


def random_model(case):
    """A model whose attention and routing are far from uniform, so that mistakes show."""
    family, extra = CASES[case]
    config = getattr(transformers, family + "Config")(**{**SIZES, **extra})
    torch.manual_seed(11)
    model = getattr(transformers, family + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name:
                continue
            if name.endswith("e_score_correction_bias"):
                tensor.copy_(0.2 * torch.randn(tensor.shape))
            elif tensor.dim() == 1:
                base = 1.0 if name.endswith("weight") else 0.0
                tensor.copy_(base + 0.2 * torch.randn(tensor.shape))
            else:
                tensor.copy_(0.8 / tensor.shape[-1] ** 0.5 * torch.randn(tensor.shape))
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens).logits


TOKENS = torch.randint(0, SIZES["vocab_size"], (3, 40), generator=torch.Generator().manual_seed(3))

# Two fp32 models through a few layers: sums of up to 80 terms, some tens of roundings of 2^-24 each.
BOUND = 5e-6


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory):
    """(case, folder, transformers' logits)"""
    model = random_model(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "model"
    model.save_pretrained(folder)
    return request.param, folder, logits_of(model, TOKENS)


def train_one_step(folder, tmp_path, *more):
    """A run whose only step has no learning rate to speak of: the weights are the folder's."""
    octavo("train", "--init", folder, "--train-data", TEXT, "--sequence", 16, "--batch", 1, "--steps",
           1, "--lr", 1e-30, "--warmup-steps", 0, "--validation-batches", 1, "--threads", 1,
           "--balance-rate", 0, "--run-dir", tmp_path / "run", *more)
    return tmp_path / "run"


def test_logits_of_a_hugging_face_folder(saved, tmp_path):
    _, folder, expected = saved
    got = octavo_logits(folder, TOKENS, tmp_path)
    assert got.dtype == torch.float32 and got.shape == expected.shape
    assert relative_error(got, expected) <= BOUND


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
    assert len(shards) > 2 and set(index["weight_map"].values()) == {s.name for s in shards}
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


# --- what goes wrong -----------------------------------------------------------------------------

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


def begin(folder, tmp_path, *parts, more=()):
    octavo_error("train", "--init", folder, "--train-data", TEXT, "--sequence", 16, "--steps", 1,
                 "--run-dir", tmp_path / "run", *more, parts=parts)


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
