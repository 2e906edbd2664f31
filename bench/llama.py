"""A Llama-3-8B-shaped decoder's training step in PyTorch: BF16, torchao and the octavo package, compiled or eager.

    PYTHONPATH=python OCTAVO_BUILD_DIR=build-cuda python bench/llama.py bf16 octavo:rowwise torchao:rowwise
        [--layers 8] [--tokens 8192] [--eager] [--steps 10] [--memory-budget 0.9]

    A contender octavo:RECIPE:off makes weights' transposed FP8 layout again in backward instead of keeping it.

One process; each contender builds the same model (every block compiled by itself, the head in high precision),
converts it with one call and times whole steps: forward, backward, fused AdamW. Median step, tokens a second and
the ratio to the first contender; the peak of memory, without what was allocated before. The shape is that of the
peers' script, so that figures can be put beside its.
"""

import argparse
import gc
import statistics
import time

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn

D, HEADS, KV_HEADS, HEAD, HIDDEN, VOCABULARY = 4096, 32, 8, 128, 14336, 128256


def rope_table(tokens):
    frequency = 500000.0 ** -(torch.arange(0, HEAD, 2, device="cuda").float() / HEAD)
    angle = torch.outer(torch.arange(tokens, device="cuda").float(), frequency)
    return angle.cos()[None, :, None], angle.sin()[None, :, None]


def turned(x, cosine, sine):
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cosine - b * sine, a * sine + b * cosine), -1).flatten(-2).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(D), nn.RMSNorm(D)
        self.q_proj, self.o_proj = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k_proj = nn.Linear(D, KV_HEADS * HEAD, bias=False)
        self.v_proj = nn.Linear(D, KV_HEADS * HEAD, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(D, HIDDEN, bias=False), nn.Linear(D, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, D, bias=False)

    def forward(self, x, cosine, sine):
        h = self.attention_norm(x)
        q, k, v = (p(h).unflatten(-1, (-1, HEAD)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, cosine, sine), turned(k, cosine, sine)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True)
        x = x + self.o_proj(attended.transpose(1, 2).flatten(-2))
        h = self.mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(nn.Module):
    def __init__(self, layers, tokens):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, D)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(D), nn.Linear(D, VOCABULARY, bias=False)
        self.table = rope_table(tokens)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, *self.table)
        return self.lm_head(self.norm(x))


def converted(model, contender):
    if contender == "bf16":
        return model
    library, recipe, *keep = contender.split(":")
    if library == "octavo":
        import octavo

        return octavo.convert_to_float8_training(
            model, recipe=recipe, filter_fqns=["lm_head"], keep_weight_transposed=keep[0] if keep else "auto")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(
        model, config=Float8LinearConfig.from_recipe_name(recipe), module_filter_fn=lambda m, n: "lm_head" not in n)


def measure(contender, args):
    """Seconds of the median step, loss of the last, bytes of the peak."""
    torch._dynamo.reset()
    gc.collect()  # models and their optimisers are cycles
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Llama(args.layers, args.tokens)
    torch.set_default_dtype(torch.float32)
    model = converted(model, contender)

    def loss_of(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    if not args.eager:
        for layer in model.layers:
            layer.compile()
        loss_of = torch.compile(loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, VOCABULARY, (1, args.tokens + 1), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for step in range(4 + args.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        if step >= 4:
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), loss.item(), torch.cuda.max_memory_allocated() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="+", help="bf16, octavo:RECIPE[:off] or torchao:RECIPE; the first is ratio 1")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--memory-budget", type=float, default=1.0, help="torch.compile's activation memory budget")
    args = parser.parse_args()
    torch._functorch.config.activation_memory_budget = args.memory_budget
    torch._functorch.config.is_non_builtin_to_include = args.memory_budget < 1  # our operators count as work too
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.layers} layers, {args.tokens} tokens, "
          f"{'eager' if args.eager else 'compiled'}", flush=True)
    first = None
    for contender in args.contenders:
        begin = time.perf_counter()
        seconds, loss, peak = measure(contender, args)
        first = first or seconds
        print(f"{contender:28} {seconds * 1e3:8.1f} ms {args.tokens / seconds:8.0f} tokens/s {first / seconds:6.3f}x "
              f"{peak / 2**30:6.1f} GiB  loss {loss:.4f}  ({time.perf_counter() - begin:.0f} s in all)", flush=True)


if __name__ == "__main__":
    main()
