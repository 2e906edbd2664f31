"""torchtitan's trainer over the bytes of a text: its command line, without a tokenizer or a data set to download.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29555 python tests/gpu/titan_bytes.py FLAGS

Model llama3_bytes: torchtitan's llama3, flavours as there. What torchtitan imports without need here (datasets,
tokenizers, tensorboard) is stood in for where it is not installed.
"""

import dataclasses
import importlib.util
import pathlib
import sys
import types

import torch

TEXT = pathlib.Path(__file__).resolve().parents[2] / "examples/data/tinyshakespeare.txt"


def stand_in(package, modules):
    """Modules with members that are None, where the package they need is not installed."""
    if importlib.util.find_spec(package) is None:
        for name, members in modules.items():
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(dict.fromkeys(members))


stand_in("datasets", {"datasets": ["Dataset", "load_dataset"], "datasets.distributed": ["split_dataset_by_node"]})
stand_in("tokenizers", {"tokenizers": ["AddedToken", "Tokenizer"]})
stand_in("tensorboard", {"torch.utils.tensorboard": ["SummaryWriter"]})

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec  # noqa: E402
from torchtitan.train import Trainer, main  # noqa: E402


class Bytes(BaseTokenizer):
    def encode(self, text, **options):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")

    def get_vocab_size(self):
        return 256


class Slices(BaseDataLoader):
    """Batches of slices of the text at random places: rank r of n takes its part of a batch all ranks draw."""

    def __init__(self, dp_world_size, dp_rank, tokenizer, job_config, infinite=True):
        self.tokens = torch.tensor(list(TEXT.read_bytes()))
        self.batch, self.length = job_config.training.local_batch_size, job_config.training.seq_len
        self.world, self.rank, self.drawn = dp_world_size, dp_rank, 0

    def __iter__(self):
        while True:
            generator = torch.Generator().manual_seed(self.drawn)
            self.drawn += 1
            starts = torch.randint(len(self.tokens) - self.length - 1, (self.world, self.batch), generator=generator)
            rows = torch.stack([self.tokens[s : s + self.length + 1] for s in starts[self.rank].tolist()])
            yield {"input": rows[:, :-1]}, rows[:, 1:]

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


register_train_spec("llama3_bytes", dataclasses.replace(
    get_train_spec("llama3"), build_tokenizer_fn=lambda job_config: Bytes(), build_dataloader_fn=Slices,
    build_validator_fn=None, state_dict_adapter=None))

if __name__ == "__main__":
    main(Trainer)
