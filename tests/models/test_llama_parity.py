"""The C++ Llama against an independent one in plain PyTorch operations.

Logits, every gradient and the losses of ten AdamW steps of small models. The reference is written
from the architecture's definition and runs in fp64, so a difference is the C++ model's fp32
rounding, or a mistake.
"""

import math
import os
import pathlib
import subprocess

import pytest
import torch

BUILD = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build"))
STEPS, BATCH, SEQUENCE = 10, 3, 21

BASE = dict(vocabulary=97, dim=48, layers=2, heads=4, kv_heads=4, hidden=80, max_sequence=64,
            rope_theta=10000.0, norm_eps=1e-5, tied_head=0, head_dim=0, attention_bias=0, qk_norm=0,
            rope_scaling=0, rope_factor=4.0, rope_low_frequency=1.0, rope_high_frequency=4.0,
            rope_original_sequence=64)
LINEAR, LLAMA3 = 1, 2  # rope_scaling, as models::RopeStretch numbers them
CASES = {
    "multi_head": {},
    "grouped_query": dict(kv_heads=2),
    "one_kv_head": dict(kv_heads=1, rope_theta=500000.0),
    "tied_head": dict(kv_heads=2, tied_head=1),
    "odd_sizes": dict(vocabulary=33, dim=30, heads=3, kv_heads=1, hidden=47, layers=3,
                      norm_eps=1e-3),
    "qwen2": dict(kv_heads=2, attention_bias=1),
    "qwen3": dict(kv_heads=2, qk_norm=1, head_dim=18, norm_eps=1e-3),
    "linear_rope": dict(rope_scaling=LINEAR),
    "llama3_rope": dict(rope_scaling=LLAMA3),  # of six angles two are kept, two stretched
}
OPTIMIZER = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def parameter_shapes(c):
    """Hugging Face's names in LlamaForCausalLM's order."""
    d, f, size = c["dim"], c["hidden"], c["head_dim"] or c["dim"] // c["heads"]
    q, kv = c["heads"] * size, c["kv_heads"] * size
    shapes = {"model.embed_tokens.weight": (c["vocabulary"], d)}
    for i in range(c["layers"]):
        p = f"model.layers.{i}."
        shapes |= {
            p + "self_attn.q_proj.weight": (q, d),
            p + "self_attn.k_proj.weight": (kv, d),
            p + "self_attn.v_proj.weight": (kv, d),
            p + "self_attn.o_proj.weight": (d, q),
            p + "mlp.gate_proj.weight": (f, d),
            p + "mlp.up_proj.weight": (f, d),
            p + "mlp.down_proj.weight": (d, f),
            p + "input_layernorm.weight": (d,),
            p + "post_attention_layernorm.weight": (d,),
        }
        if c["attention_bias"]:
            shapes |= {p + f"self_attn.{x}_proj.bias": (n,) for x, n in (("q", q), ("k", kv), ("v", kv))}
        if c["qk_norm"]:
            shapes |= {p + f"self_attn.{x}_norm.weight": (size,) for x in "qk"}
    shapes["model.norm.weight"] = (d,)
    if not c["tied_head"]:
        shapes["lm_head.weight"] = (c["vocabulary"], d)
    return shapes


def norm(x, w, eps):
    return w * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def stretched(c, f):
    """A frequency after rope_scaling; f / 2 pi turns a position."""
    if c.get("rope_scaling") == LINEAR:
        return f / c["rope_factor"]
    if c.get("rope_scaling") == LLAMA3:
        turns = c["rope_original_sequence"] * f / (2 * math.pi)
        low, high = c["rope_low_frequency"], c["rope_high_frequency"]
        if turns < low:
            return f / c["rope_factor"]
        if turns < high:
            kept = (turns - low) / (high - low)
            return (1 - kept) * f / c["rope_factor"] + kept * f
    return f


def rope(x, c):
    """x: (B, T, H, P). Pairs (i, i + P/2) as complex numbers, turned by exp(j t theta^(-2i/P))."""
    half = x.shape[-1] // 2
    frequency = torch.tensor([stretched(c, c["rope_theta"] ** (-i / half)) for i in range(half)],
                             dtype=x.dtype)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * frequency
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)


def attention(q, k, v):
    """q: (B, T, H, P), k and v: (B, T, H_kv, P). One head at a time, softmax written out."""
    heads, group = q.shape[2], q.shape[2] // k.shape[2]
    future = torch.triu(torch.ones(q.shape[1], q.shape[1], dtype=torch.bool), 1)
    outputs = []
    for h in range(heads):
        scores = q[:, :, h] @ k[:, :, h // group].mT / math.sqrt(q.shape[3])
        weights = scores.masked_fill(future, -torch.inf).exp()
        outputs.append(weights / weights.sum(-1, keepdim=True) @ v[:, :, h // group])
    return torch.cat(outputs, -1)  # (B, T, D)


def reference_logits(c, p, tokens):
    b, t = tokens.shape
    x = p["model.embed_tokens.weight"][tokens]
    for i in range(c["layers"]):
        w = {name.removeprefix(f"model.layers.{i}.").replace(".weight", ""): tensor
             for name, tensor in p.items() if name.startswith(f"model.layers.{i}.")}
        h = norm(x, w["input_layernorm"], c["norm_eps"])
        q, k, v = (h @ w[f"self_attn.{x}_proj"].T + w.get(f"self_attn.{x}_proj.bias", 0) for x in "qkv")
        q, k = q.view(b, t, c["heads"], -1), k.view(b, t, c["kv_heads"], -1)
        if c["qk_norm"]:
            q = norm(q, w["self_attn.q_norm"], c["norm_eps"])
            k = norm(k, w["self_attn.k_norm"], c["norm_eps"])
        q, k, v = rope(q, c), rope(k, c), v.view(b, t, c["kv_heads"], -1)
        x = x + attention(q, k, v) @ w["self_attn.o_proj"].T
        h = norm(x, w["post_attention_layernorm"], c["norm_eps"])
        gate, up = h @ w["mlp.gate_proj"].T, h @ w["mlp.up_proj"].T
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ w["mlp.down_proj"].T
    x = norm(x, p["model.norm.weight"], c["norm_eps"])
    head = p["model.embed_tokens.weight" if c["tied_head"] else "lm_head.weight"]
    return x @ head.T


def reference_loss(logits, targets):
    picked = logits.gather(-1, targets[..., None])[..., 0]
    return (torch.logsumexp(logits, -1) - picked).mean()


def reference_run(c, weights, tokens, targets):
    p = {name: w.double().requires_grad_() for name, w in weights.items()}
    optimizer = torch.optim.AdamW(p.values(), **OPTIMIZER)
    out = {"losses": []}
    for step in range(STEPS):
        logits = reference_logits(c, p, tokens[step])
        loss = reference_loss(logits, targets[step])
        optimizer.zero_grad()
        loss.backward()
        out["losses"].append(loss.item())
        if step == 0:
            out["logits"] = logits.detach()
            out["gradients"] = {name: tensor.grad.clone() for name, tensor in p.items()}
        optimizer.step()
    return out


def relative_error(got, expected):
    """Norm of the difference over the norm: one number for a whole tensor; NaN stays NaN."""
    return ((got.double() - expected).norm() / expected.norm()).item()


@pytest.fixture(scope="module", params=CASES)
def results(request, tmp_path_factory):
    c = BASE | CASES[request.param]
    torch.manual_seed(7)
    # Larger than the usual 0.02, so that attention is far from uniform and mistakes show.
    weights = {name: 1 + 0.2 * torch.randn(shape) if len(shape) == 1
               else 0.8 / math.sqrt(shape[1]) * torch.randn(shape)
               for name, shape in parameter_shapes(c).items()}
    text = torch.randint(0, c["vocabulary"], (STEPS, BATCH, SEQUENCE + 1))
    tokens, targets = text[..., :-1].contiguous(), text[..., 1:].contiguous()

    folder = tmp_path_factory.mktemp(request.param)
    given = {f"config.{k}": torch.tensor(v, dtype=torch.float64 if isinstance(v, float)
                                         else torch.int64) for k, v in c.items()}
    given |= {f"weights.{k}": v for k, v in weights.items()}
    given |= {"tokens": tokens, "targets": targets}
    given |= {k: torch.tensor(v, dtype=torch.float64) for k, v in OPTIMIZER.items()}
    torch.save(given, folder / "input.pt")
    subprocess.run([BUILD / "tests" / "test_models", "--llama-dump", folder / "input.pt",
                    folder / "output.pt"],
                   check=True)
    # LibTorch tags the dictionary's type, which the restricted reader refuses; the file is ours.
    got = torch.load(folder / "output.pt", weights_only=False)
    return c, got, reference_run(c, weights, tokens, targets), weights, tokens


def test_logits(results):
    _, got, expected, *_ = results
    assert got["logits"].dtype == torch.float32
    # fp32 through a few layers of sums of up to 80 terms: some tens of roundings of 2^-24.
    assert relative_error(got["logits"], expected["logits"]) <= 2e-6


def test_every_gradient(results):
    c, got, expected, *_ = results
    names = [k.removeprefix("gradients.") for k in got if k.startswith("gradients.")]
    assert sorted(names) == sorted(parameter_shapes(c))
    # The same roundings as the logits', forwards and backwards.
    errors = {name: relative_error(got[f"gradients.{name}"], expected["gradients"][name])
              for name in names}
    # What all keys have in common moves no attention but for RoPE: the sums of k's bias cancel.
    bounds = {name: 4e-5 if name.endswith("k_proj.bias") else 4e-6 for name in names}
    assert all(error <= bounds[name] for name, error in errors.items()), errors


def test_ten_losses(results):
    _, got, expected, *_ = results
    # Each loss is a mean in fp32 (1e-7 relative). AdamW divides by the gradient's own size, which
    # turns the rounding of small gradients into different steps: a few 1e-6 after ten of them.
    losses = got["losses"].double().tolist()
    assert len(losses) == STEPS
    errors = [abs(a - b) for a, b in zip(losses, expected["losses"])]
    assert errors[0] <= 2e-6, errors
    assert all(error <= 1e-5 for error in errors), errors
    # The steps did something: a comparison of constants would prove nothing.
    assert max(expected["losses"]) - min(expected["losses"]) > 0.1


def test_hugging_face_model_takes_our_weights(results):
    """Names, shapes and logits of transformers' own model, where it is installed."""
    transformers = pytest.importorskip("transformers")
    c, got, _, weights, tokens = results
    if c["attention_bias"] or c["qk_norm"] or c["rope_scaling"]:
        pytest.skip("not a Llama: tests/train/test_hugging_face.py compares the other families")
    config = transformers.LlamaConfig(
        vocab_size=c["vocabulary"], hidden_size=c["dim"], intermediate_size=c["hidden"],
        num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
        num_key_value_heads=c["kv_heads"], max_position_embeddings=c["max_sequence"],
        rms_norm_eps=c["norm_eps"], rope_theta=c["rope_theta"],
        rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]},
        tie_word_embeddings=bool(c["tied_head"]), attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config)
    state = dict(weights)
    if c["tied_head"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        logits = model(tokens[0]).logits
    # Two fp32 models, each as far from the truth as test_logits allows.
    assert relative_error(got["logits"], logits.double()) <= 4e-6
