"""Full fine-tuning in torchtune's style: one recipe class, one file, FP8 by one line of it.

    python examples/python/finetune.py --model DIR --data FILE --recipe rowwise --output DIR

--model: a Hugging Face folder (Llama, Qwen, Mixtral, ...); without it a small random Llama. --data: JSON lines
with "prompt" and "answer"; without it a toy task. Tokens are bytes where the model has no tokenizer. Loss is of
the answers alone. Evaluation is in high precision, and so is the saved model.
"""

import argparse
import contextlib
import json
import pathlib

import torch
import torch.nn.functional as F

import octavo


class FineTuneRecipe:
    def __init__(self, args):
        self.args = args

    def setup(self):
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.args.model:
            self.model = AutoModelForCausalLM.from_pretrained(self.args.model, dtype="auto")
            tokenizer = AutoTokenizer.from_pretrained(self.args.model)
            self.encode = lambda text: tokenizer(text, add_special_tokens=False).input_ids
        else:
            self.model = LlamaForCausalLM(LlamaConfig(
                vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4))
            self.encode = lambda text: list(text.encode())
        self.model.to(device)
        if self.args.recipe != "none":
            # The head's logits stay in high precision; experts, where there are any, are converted too.
            octavo.convert_to_float8_training(self.model, recipe=self.args.recipe, filter_fqns=["lm_head"])
            if any(name.endswith("experts") for name, _ in self.model.named_modules()):
                octavo.convert_moe_training(self.model, recipe=self.args.recipe)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.lr)
        self.batches = self.load_data(device)
        if self.args.compile:
            self.model.forward = torch.compile(self.model.forward)

    def load_data(self, device):
        if self.args.data:
            lines = pathlib.Path(self.args.data).read_text().splitlines()
            pairs = [(d["prompt"], d["answer"]) for d in map(json.loads, filter(str.strip, lines))]
        else:
            pairs = [(f"{a}+{b}=", f"{a + b}.") for a in range(10) for b in range(10)]
        batches = []
        for i in range(0, len(pairs), self.args.batch_size):
            rows = [(self.encode(p), self.encode(a)) for p, a in pairs[i : i + self.args.batch_size]]
            length = max(len(p) + len(a) for p, a in rows)
            tokens = torch.tensor([p + a + [0] * (length - len(p) - len(a)) for p, a in rows])
            labels = torch.tensor([[-100] * len(p) + a + [-100] * (length - len(p) - len(a)) for p, a in rows])
            batches.append((tokens.to(device), labels.to(device)))
        return batches

    def loss(self, tokens, labels):
        logits = self.model(input_ids=tokens).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)

    def train(self):
        for epoch in range(self.args.epochs):
            for tokens, labels in self.batches:
                self.loss(tokens, labels).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            print(f"epoch {epoch + 1}: loss {self.evaluate():.4f}", flush=True)

    @torch.no_grad()
    def evaluate(self):
        with octavo.high_precision(self.model) if self.args.recipe != "none" else contextlib.nullcontext():
            losses = [self.loss(*batch).item() for batch in self.batches]
        return sum(losses) / len(losses)

    def save_checkpoint(self):
        if self.args.output:
            self.model.save_pretrained(self.args.output)  # names and types are the unconverted model's


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--output")
    parser.add_argument("--recipe", default="rowwise", help="none, or a recipe of python -m octavo info")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--compile", action="store_true")
    recipe = FineTuneRecipe(parser.parse_args())
    recipe.setup()
    recipe.train()
    recipe.save_checkpoint()


if __name__ == "__main__":
    main()
