"""The C++ decoder with experts against an independent one in plain PyTorch operations.

As test_llama_parity.py, whose attention, norms and losses it shares; here are the router, the
experts, both ways of balancing, and blocks of either kind. Every expert sees every token and a mask
decides what counts: nothing is sorted, so a mistake in sorting shows.
"""

import os
import pathlib
import subprocess

import pytest
import torch
from test_llama_parity import (OPTIMIZER, attention, norm, reference_loss, relative_error, rope)

BUILD = pathlib.Path(os.environ.get("OCTAVO_BUILD_DIR", "build"))
STEPS, BATCH, SEQUENCE = 6, 2, 23
NONE, LOSS, BIAS = 0, 1, 2

BASE = dict(vocabulary=61, dim=48, layers=3, heads=4, kv_heads=2, hidden=80, max_sequence=64,
            rope_theta=10000.0, norm_eps=1e-5, tied_head=0, experts=6, top_k=2, expert_hidden=40,
            shared_hidden=0, moe_every=1, dense_first=0, sigmoid=0, normalise_weights=0,
            routed_scale=1.0, weight_on_input=0, balance=NONE, balance_rate=0.02)
CASES = {
    "softmax_top_2": {},
    "deepseek_moe": dict(top_k=3, shared_hidden=56, dense_first=1, balance=LOSS),
    "deepseek_v3": dict(top_k=3, shared_hidden=24, dense_first=1, sigmoid=1, normalise_weights=1,
                        routed_scale=2.5, balance=BIAS),
    "llama_4": dict(top_k=1, shared_hidden=40, moe_every=2, sigmoid=1, weight_on_input=1,
                    balance=BIAS),
    "every_expert": dict(top_k=6, normalise_weights=1, layers=2),
}


def is_moe(c, layer):
    return layer >= c["dense_first"] and (layer + 1) % c["moe_every"] == 0


def parameter_shapes(c):
    d, kv, e, f = c["dim"], c["kv_heads"] * (c["dim"] // c["heads"]), c["experts"], c["expert_hidden"]
    network = lambda p, width: {p + "gate_proj.weight": (width, d), p + "up_proj.weight": (width, d),
                                p + "down_proj.weight": (d, width)}
    shapes = {"model.embed_tokens.weight": (c["vocabulary"], d)}
    for i in range(c["layers"]):
        p = f"model.layers.{i}."
        shapes |= {p + "self_attn.q_proj.weight": (d, d), p + "self_attn.k_proj.weight": (kv, d),
                   p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, d)}
        if is_moe(c, i):
            if c["balance"] == BIAS:
                shapes[p + "moe.router.expert_bias"] = (e,)
            shapes |= {p + "moe.router.gate.weight": (e, d),
                       p + "moe.experts.gate_up_proj": (e, 2 * f, d),
                       p + "moe.experts.down_proj": (e, d, f)}
            if c["shared_hidden"]:
                shapes |= network(p + "moe.shared_expert.", c["shared_hidden"])
        else:
            shapes |= network(p + "mlp.", c["hidden"])
        shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)}
    return shapes | {"model.norm.weight": (d,), "lm_head.weight": (c["vocabulary"], d)}


def swiglu(x, gate, up, down):
    g = x @ gate.T
    return (g / (1 + torch.exp(-g)) * (x @ up.T)) @ down.T


def dense_network(w, prefix, x):
    return swiglu(x, *(w[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down")))


def moe_network(c, w, x):
    """x: (M, D). The output, the auxiliary loss (0 without one) and each expert's tokens."""
    k, e, f = c["top_k"], c["experts"], c["expert_hidden"]
    logits = x @ w["moe.router.gate.weight"].T
    scores = 1 / (1 + torch.exp(-logits)) if c["sigmoid"] else torch.softmax(logits, -1)
    ranked = scores.detach().clone()
    if c["balance"] == BIAS:
        ranked = ranked + w["moe.router.expert_bias"]
    chosen = torch.zeros_like(ranked)
    for _ in range(k):  # the best, then the best of the rest
        best = ranked.argmax(-1, keepdim=True)
        chosen.scatter_(-1, best, 1.0)
        ranked = ranked.scatter(-1, best, -torch.inf)
    weights = scores * chosen
    if c["normalise_weights"]:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * c["routed_scale"]
    y = 0
    for i in range(e):
        both, weight = w["moe.experts.gate_up_proj"][i], weights[:, i:i + 1]
        given = x * weight if c["weight_on_input"] else x
        out = swiglu(given, both[:f], both[f:], w["moe.experts.down_proj"][i])
        # Llama 4 weighs the input: what is not chosen is given zeros, whose output is zero.
        y = y + (out if c["weight_on_input"] else out * weight)
    if c["shared_hidden"]:
        y = y + dense_network(w, "moe.shared_expert.", x)
    aux = 0.0
    if c["balance"] == LOSS:
        shares = scores / scores.sum(-1, keepdim=True)
        fraction = chosen.sum(0) / chosen.sum()
        aux = c["balance_rate"] * e * (fraction * shares.mean(0)).sum()
    return y, aux, chosen.sum(0)


def reference_forward(c, p, tokens):
    b, t = tokens.shape
    x, aux, loads = p["model.embed_tokens.weight"][tokens], 0.0, {}
    for i in range(c["layers"]):
        w = {name.removeprefix(f"model.layers.{i}."): tensor
             for name, tensor in p.items() if name.startswith(f"model.layers.{i}.")}
        h = norm(x, w["input_layernorm.weight"], c["norm_eps"])
        q, k, v = ((h @ w[f"self_attn.{n}_proj.weight"].T).view(b, t, heads, -1)
                   for n, heads in (("q", c["heads"]), ("k", c["kv_heads"]), ("v", c["kv_heads"])))
        x = x + attention(rope(q, c), rope(k, c), v) @ w[
            "self_attn.o_proj.weight"].T
        h = norm(x, w["post_attention_layernorm.weight"], c["norm_eps"])
        if is_moe(c, i):
            y, more, loads[i] = moe_network(c, w, h.flatten(0, 1))
            x, aux = x + y.view_as(x), aux + more
        else:
            x = x + dense_network(w, "mlp.", h)
    return norm(x, p["model.norm.weight"], c["norm_eps"]) @ p["lm_head.weight"].T, aux, loads


def reference_run(c, weights, tokens, targets):
    p = {name: w.double().requires_grad_(not name.endswith("expert_bias"))
         for name, w in weights.items()}
    optimizer = torch.optim.AdamW([w for w in p.values() if w.requires_grad], **OPTIMIZER)
    out = {"losses": [], "aux_losses": []}
    for step in range(STEPS):
        logits, aux, loads = reference_forward(c, p, tokens[step])
        loss = reference_loss(logits, targets[step])
        optimizer.zero_grad()
        (loss + aux).backward()
        out["losses"].append(loss.item())
        out["aux_losses"].append(torch.as_tensor(aux).item())
        if step == 0:
            out["logits"] = logits.detach()
            out["gradients"] = {n: w.grad.clone() for n, w in p.items() if w.requires_grad}
        optimizer.step()
        if c["balance"] == BIAS:
            for i, load in loads.items():
                p[f"model.layers.{i}.moe.router.expert_bias"] += c["balance_rate"] * torch.sign(
                    load.mean() - load)
    return out | {"final": {n: w.detach() for n, w in p.items()}}


@pytest.fixture(scope="module", params=CASES)
def results(request, tmp_path_factory):
    c = BASE | CASES[request.param]
    torch.manual_seed(11)
    weights = {name: 1 + 0.2 * torch.randn(shape) if name.endswith("norm.weight")
               else 0.05 * torch.randn(shape) if name.endswith("expert_bias")
               else 0.8 / shape[-1] ** 0.5 * torch.randn(shape)
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
                    folder / "output.pt"], check=True)
    # LibTorch tags the dictionary's type, which the restricted reader refuses; the file is ours.
    got = torch.load(folder / "output.pt", weights_only=False)
    return c, got, reference_run(c, weights, tokens, targets)


def test_logits(results):
    _, got, expected = results
    # fp32 through a few layers of sums of up to 80 terms: some tens of roundings of 2^-24.
    assert relative_error(got["logits"], expected["logits"]) <= 3e-6


def test_every_gradient(results):
    c, got, expected = results
    names = {k.removeprefix("gradients.") for k in got if k.startswith("gradients.")}
    assert names == set(expected["gradients"])
    errors = {name: relative_error(got[f"gradients.{name}"], expected["gradients"][name])
              for name in names}
    assert all(error <= 6e-6 for error in errors.values()), errors


def test_losses(results):
    c, got, expected = results
    errors = [abs(a - b) for a, b in zip(got["losses"].double().tolist(), expected["losses"])]
    # As test_llama_parity.py: AdamW turns roundings of small gradients into different steps.
    assert errors[0] <= 2e-6 and all(error <= 2e-5 for error in errors), errors
    assert max(expected["losses"]) - min(expected["losses"]) > 0.05
    aux = [abs(a - b) for a, b in zip(got["aux_losses"].double().tolist(), expected["aux_losses"])]
    assert all(error <= 1e-5 for error in aux), aux
    assert (expected["aux_losses"][0] > 0) == (c["balance"] == LOSS)


def test_biases(results):
    c, got, expected = results
    names = [n for n in expected["final"] if n.endswith("expert_bias")]
    assert bool(names) == (c["balance"] == BIAS)
    for name in names:
        # Steps of balance_rate, fp32 sums of six.
        assert (got[f"final.{name}"].double() - expected["final"][name]).abs().max() <= 1e-6
