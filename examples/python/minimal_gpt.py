"""nanochat's use of FP8, in short: linears of the blocks in FP8, head and evaluation in high precision."""

import torch
import torch.nn.functional as F
from torch import nn

import octavo


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(F.rms_norm(x, x.shape[-1:])).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(F.relu(self.up(F.rms_norm(x, x.shape[-1:]))).square())


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(128, 128), Block(128), Block(128), nn.Linear(128, 128, bias=False))
octavo.convert_to_float8_training(model, filter_fqns=["3"])  # all but the head
text = torch.tensor(list(b"to be, or not to be: that is the question. " * 24)).view(8, -1)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def loss_of(model):
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


for step in range(30):
    loss_of(model).backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad(), octavo.high_precision(model):
    print(f"loss in high precision after {step + 1} FP8 steps: {loss_of(model).item():.3f}")
