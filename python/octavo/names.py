"""Names of layers, and the filters that match them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

# Hugging Face's name of a part -> torchtitan's, as octavo::nn::torchtitan_name() has them.
_TORCHTITAN = {
    "self_attn": "attention", "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo",
    "mlp": "feed_forward", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3", "lm_head": "output",
}  # fmt: skip
_HUGGING_FACE = {theirs: ours for ours, theirs in _TORCHTITAN.items() if theirs != "output"}
# Levels that wrappers add: torch.compile, activation checkpointing, DDP.
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "module"}


def plain_name(fqn: str) -> str:
    """A module's name without the levels that torch's wrappers add."""
    return ".".join(part for part in fqn.split(".") if part not in _WRAPPERS)


def torchtitan_name(fqn: str) -> str:
    """A layer's name as torchtitan's Llama has it: "model.layers.0.self_attn.q_proj" ->
    "layers.0.attention.wq", "lm_head" -> "output". Parts without a counterpart stay."""
    parts = fqn.split(".")
    if parts[0] == "model" and len(parts) > 1:
        parts = parts[1:]
    return ".".join(_TORCHTITAN.get(part, part) for part in parts)


def hugging_face_name(fqn: str) -> str:
    """The way back: "layers.0.attention.wq" -> "layers.0.self_attn.q_proj", "output" -> "lm_head"."""
    if fqn == "output":
        return "lm_head"
    return ".".join(_HUGGING_FACE.get(part, part) for part in fqn.split("."))


def spellings(fqn: str) -> set[str]:
    """The names a filter may match: the module's own, torchtitan's and Hugging Face's."""
    fqn = plain_name(fqn)
    return {fqn, torchtitan_name(fqn), hugging_face_name(fqn)}


class NameFilter:
    """Entries that match names as substrings, and which of them have matched."""

    def __init__(self, argument: str, entries: Iterable[str]) -> None:
        if isinstance(entries, str):
            raise TypeError(f"{argument}: expected a list of names, got the string {entries!r}; write [{entries!r}]")
        if not isinstance(entries, Iterable):
            raise TypeError(
                f"{argument}: expected a list of names, got {type(entries).__name__}; leave it out for no names"
            )
        self.argument = argument
        self.entries: Sequence[str] = list(entries)
        for entry in self.entries:
            if not isinstance(entry, str):
                raise TypeError(
                    f"{argument}: expected names, got {entry!r} of type {type(entry).__name__}; write the layer's "
                    "name, or a part of it, as a string"
                )
        if "" in self.entries:
            raise ValueError(f"{argument}: an empty entry would match every layer; remove it")
        self._matched: set[str] = set()
        self._seen: list[str] = []

    def match(self, fqn: str) -> str:
        """The first entry that matches, or an empty string."""
        names = spellings(fqn)
        for name in sorted(names):
            short = name.rsplit(".", 1)[-1]
            if short not in self._seen:
                self._seen.append(short)
        found = [entry for entry in self.entries if any(entry in name for name in names)]
        self._matched.update(found)
        return found[0] if found else ""

    def unmatched(self) -> list[str]:
        return [entry for entry in self.entries if entry not in self._matched]

    def complaint(self) -> str:
        """What is wrong with the entries that matched nothing; an empty string where nothing is."""
        for entry in self.unmatched():
            near = difflib.get_close_matches(entry.rsplit(".", 1)[-1], self._seen, 1, 0.5)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            return (
                f"{self.argument}: '{entry}' matches no layer{hint}; they are "
                f"{', '.join(self._seen) or 'none'}; remove the entry or set allow_unmatched"
            )
        return ""
