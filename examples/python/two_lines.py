"""A small transformers Llama trained in FP8: python examples/python/two_lines.py [--compile]"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import octavo

torch.manual_seed(0)
config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
model = LlamaForCausalLM(config)
model = octavo.convert_to_float8_training(model, filter_fqns=["lm_head"])

text = "FP8 training of language models: every operand is needed twice. " * 32
tokens = torch.tensor(list(text.encode())).view(16, -1)
step = torch.compile(model, fullgraph=True) if "--compile" in sys.argv else model
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for i in range(20):
    loss = step(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if i % 5 == 4:
        print(f"step {i + 1}: loss {loss.item():.3f}", flush=True)
