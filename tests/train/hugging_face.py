"""What the tests of Hugging Face folders share: the command, small random models, logits."""

import importlib.util
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
    "qwen3_moe_every_second": ("Qwen3Moe", dict(EXPERTS, num_experts=6, moe_intermediate_size=32, head_dim=16,
                                                norm_topk_prob=False, decoder_sparse_step=2, rope_parameters=ROPE)),
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


def random_model(case, fields=None):
    """A model whose attention and routing are far from uniform, so that mistakes show. fields: its configuration's
    instead of the case's."""
    family, extra = CASES[case]
    config = getattr(transformers, family + "Config")(**(fields or {**SIZES, **extra}))
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


def train_one_step(folder, tmp_path, *more):
    """A run whose only step has no learning rate to speak of: the weights are the folder's."""
    octavo("train", "--init", folder, "--train-data", TEXT, "--sequence", 16, "--batch", 1, "--steps",
           1, "--lr", 1e-30, "--warmup-steps", 0, "--validation-batches", 1, "--threads", 1,
           "--balance-rate", 0, "--run-dir", tmp_path / "run", *more)
    return tmp_path / "run"


def begin(folder, tmp_path, *parts, more=()):
    octavo_error("train", "--init", folder, "--train-data", TEXT, "--sequence", 16, "--steps", 1,
                 "--run-dir", tmp_path / "run", *more, parts=parts)
