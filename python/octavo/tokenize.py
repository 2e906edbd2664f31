"""Text to token shards: what `octavo train` reads as train_data.

    python -m octavo tokenize book.txt more.jsonl --tokenizer tokenizer.json --output data/tokens
    octavo train --train-data data/tokens ...

A .jsonl file has a document a line, in the field --json-field; any other file is one document. Text
goes through the tokenizer in pieces, so a file of any size fits in memory, and is cut only where the
tokens on both sides are those of the whole.
"""

from __future__ import annotations

import argparse
import array
import fcntl
import hashlib
import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

HELP = "text to token shards, through a Hugging Face tokenizer.json"

MAGIC, VERSION, HEADER_BYTES = b"OCTAVOTK", 1, 256  # octavo/train/token_file.h has the format
PIECE = 1 << 18  # characters given to the tokenizer as one text
BATCH = 1 << 23  # and at once, for its threads


class TokenizeError(Exception):
    """What is wrong and what to do about it, in one line."""


class ShardWriter:
    """Writes shard-000000.bin, shard-000001.bin, ... of at most `shard_tokens` tokens to `folder`.

    Tokens are uint16 where the vocabulary (the largest id + 1) fits, otherwise uint32.
    """

    def __init__(self, folder: Path, vocabulary: int, shard_tokens: int):
        if vocabulary < 1 or shard_tokens < 1:
            raise ValueError("vocabulary and shard_tokens must be at least 1")
        self.folder, self.vocabulary, self.shard_tokens = folder, vocabulary, shard_tokens
        self.typecode = "H" if vocabulary <= 1 << 16 else "I"
        self.shards: list[tuple[str, int]] = []
        self._file = None

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.shards)

    def write(self, ids: list[int]) -> None:
        """Errors: an id that the vocabulary does not have."""
        begin = 0
        while begin < len(ids):
            if self._file is None:
                name = f"shard-{len(self.shards):06d}.bin"
                self._file = open(self.folder / name, "wb")
                self._file.write(b"\0" * HEADER_BYTES)
                self.shards.append((name, 0))
            name, held = self.shards[-1]
            part = ids[begin : begin + self.shard_tokens - held]
            if min(part) < 0 or max(part) >= self.vocabulary:
                raise TokenizeError(
                    f"the tokenizer gave token {max(part)}, but its vocabulary has {self.vocabulary}; "
                    "its tokenizer.json contradicts itself"
                )
            data = array.array(self.typecode, part)
            if sys.byteorder == "big":
                data.byteswap()
            data.tofile(self._file)
            self.shards[-1] = (name, held + len(part))
            begin += len(part)
            if held + len(part) == self.shard_tokens:
                self._close_shard()

    def close(self) -> None:
        if self._file is not None:
            self._close_shard()

    def _close_shard(self) -> None:
        file, self._file = self._file, None
        width = 2 if self.typecode == "H" else 4
        file.seek(0)
        file.write(struct.pack("<8sIIQQ", MAGIC, VERSION, width, self.shards[-1][1], self.vocabulary))
        file.flush()
        os.fsync(file.fileno())
        file.close()


# --- documents -----------------------------------------------------------------------------------


def find_files(inputs: Iterable[str]) -> list[Path]:
    """The files named, and those of folders (.txt, .md, .jsonl below them, by name)."""
    files: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".md", ".jsonl"))
            if not found:
                raise TokenizeError(f"{path}: no .txt, .md or .jsonl file in this folder")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise TokenizeError(f"{path}: {'is no file' if path.exists() else 'no such file'}")
    return files


def read_text(path: Path, size: int = PIECE) -> Iterator[tuple[str, int]]:
    """(text, bytes read) in blocks. An error names the place of bytes that are no UTF-8."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    with open(path, "rb") as file:
        while True:
            block = file.read(size)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                held = len(error.object) - len(block)
                raise TokenizeError(
                    f"{path}: byte {done - held + error.start} is no UTF-8; convert the file"
                ) from None
            done += len(block)
            yield text, len(block)
            if not block:
                return


def documents(path: Path, json_field: str) -> Iterator[tuple[Iterator[str], int]]:
    """(the document's text in blocks, bytes of the file behind them) for each document.

    Bytes of a text file are counted by its blocks: (blocks, 0), which yield as they are read.
    """
    if path.suffix != ".jsonl":
        yield (text for text, _ in read_text(path)), path.stat().st_size
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                yield iter(()), len(line)
                continue
            try:
                row = json.loads(line)
            except ValueError as error:  # bytes that are no UTF-8 too
                raise TokenizeError(f"{path}:{number}: no JSON ({error}); mend that line") from None
            text = row.get(json_field) if isinstance(row, dict) else None
            if not isinstance(text, str):
                has = ", ".join(row) if isinstance(row, dict) else type(row).__name__
                raise TokenizeError(
                    f'{path}:{number}: no text in field "{json_field}" (there is: {has}); '
                    "give --json-field"
                )
            yield iter((text,)), len(line)


def cut(tokenizer, text: str, tries: int = 8, context: int = 256) -> int:
    """Where `text` can be cut so that its two parts have the tokens of the whole; 0: nowhere found.

    Tried at the beginnings of its last lines, by tokenising their surroundings whole and in parts.
    """
    end = len(text)
    for _ in range(tries):
        at = text.rfind("\n", 0, end) + 1
        if at <= 0:
            return 0
        end = at - 1
        if at == len(text) or text[at].isspace():
            continue
        left, right = text[max(0, at - context) : at], text[at : at + context]
        parts = tokenizer.encode(left, add_special_tokens=False).ids
        parts = parts + tokenizer.encode(right, add_special_tokens=False).ids
        if tokenizer.encode(left + right, add_special_tokens=False).ids == parts:
            return at
    return 0


def pieces(tokenizer, blocks: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """A document's text in pieces of about `size` characters whose tokens add up to its tokens."""
    held, wanted = "", size
    for block in blocks:
        held += block
        while len(held) > wanted:
            at = cut(tokenizer, held)
            if at == 0:
                wanted = 2 * len(held)  # one long line, or a tokenizer that cannot be cut
                break
            yield held[:at]
            held, wanted = held[at:], size
    if held:
        yield held


# --- tokenizer -----------------------------------------------------------------------------------


def load_tokenizer(path: Path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TokenizeError("needs the package tokenizers: pip install tokenizers") from None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise TokenizeError(f"--tokenizer: no file {file}; give a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises bare Exceptions
        raise TokenizeError(f"--tokenizer: {file} is no tokenizer.json ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, file


def vocabulary_of(tokenizer) -> int:
    """The largest id + 1: vocabularies can have holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def end_token(tokenizer, file: Path, asked: str | None) -> tuple[int | None, str]:
    """The id put behind each document, and what to say about it.

    Asked for by name, "none", or (None) the eos_token of tokenizer_config.json beside the tokenizer.
    """
    if asked == "none":
        return None, "none between documents"
    name, source = asked, "--end-token"
    if name is None:
        config = file.parent / "tokenizer_config.json"
        if not config.is_file():
            return None, "none between documents (no tokenizer_config.json names one: --end-token does)"
        try:
            name = json.loads(config.read_text()).get("eos_token")
        except (ValueError, AttributeError):
            raise TokenizeError(f"{config} is no JSON object; mend it or give --end-token") from None
        name, source = name.get("content") if isinstance(name, dict) else name, str(config)
        if name is None:
            return None, f"none between documents ({config} names none: --end-token does)"
    ident = tokenizer.token_to_id(name)
    if ident is None:
        raise TokenizeError(f"{source}: the tokenizer has no token {name!r}; name one that it has")
    return ident, f"{name!r} ({ident}) behind each document"


# --- the command ---------------------------------------------------------------------------------


class Bar:
    """Progress on stderr: one line that is rewritten on a terminal, otherwise a line each tenth."""

    def __init__(self, total: int, stream=None):
        self.total, self.stream = max(total, 1), stream or sys.stderr
        self.begin, self.last, self.tenth = time.monotonic(), 0.0, 0

    def show(self, done: int, tokens: int, final: bool = False) -> None:
        now, share = time.monotonic(), min(done / self.total, 1.0)
        live = self.stream.isatty()
        if not final and (now - self.last < 0.2 if live else int(share * 10) <= self.tenth):
            return
        self.last, self.tenth = now, int(share * 10)
        seconds = max(now - self.begin, 1e-9)
        left = seconds / share * (1 - share) if share > 0 else 0.0
        filled = int(share * 30)
        line = (
            f"{'#' * filled}{'.' * (30 - filled)} {share:4.0%}  {done / 1e6:,.1f} of "
            f"{self.total / 1e6:,.1f} MB  {tokens:,} tokens  {tokens / seconds:,.0f} tok/s  "
            f"{left:.0f}s left"
        )
        self.stream.write(("\r\x1b[K" if live else "") + line + ("\n" if final or not live else ""))
        self.stream.flush()


def tokenize_files(tokenizer, files, writer: ShardWriter, end_id, json_field: str, bar: Bar) -> int:
    """Writes every document's tokens; the number of documents."""
    batch: list[tuple[str | None, int]] = []  # (text, bytes behind it); None: the document ends
    held = count = done = 0
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def flush() -> None:
        nonlocal held, done
        texts = [text for text, _ in batch if text is not None]
        encoded = iter(encode(texts, add_special_tokens=False) if texts else ())
        for text, size in batch:
            ids = [end_id] if text is None else next(encoded).ids
            if ids:
                writer.write(ids)
            done += size
        batch.clear()
        held = 0
        bar.show(done, writer.tokens)

    for path in files:
        for blocks, size in documents(path, json_field):
            seen = empty = 0
            for piece in pieces(tokenizer, blocks):
                part = min(len(piece.encode()), size - seen)
                batch.append((piece, part))
                seen += part
                held += len(piece)
                empty = 1
                if held >= BATCH:
                    flush()
            count += empty
            if empty and end_id is not None:
                batch.append((None, 0))
            done += size - seen  # what surrounds the text of a .jsonl line
    flush()
    bar.show(done, writer.tokens, final=True)
    return count


def write_shards(options) -> str:
    files = find_files(options.inputs)
    tokenizer, tokenizer_file = load_tokenizer(Path(options.tokenizer))
    end_id, end_text = end_token(tokenizer, tokenizer_file, options.end_token)
    vocabulary = vocabulary_of(tokenizer)
    output = Path(options.output)
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        if not options.overwrite:
            raise TokenizeError(f"--output: {output} is there already; add --overwrite or name another")
        if not (output / "tokens.json").is_file():
            raise TokenizeError(f"--output: {output} is no folder of tokens; name another")
    output.parent.mkdir(parents=True, exist_ok=True)
    writing = output.parent / f".{output.name}.writing"
    writing.mkdir(exist_ok=True)
    lock = os.open(writing, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TokenizeError(f"--output: another tokenize is writing {output}; wait for it") from None
        for leftover in writing.iterdir():  # of a run that was killed
            leftover.unlink()
        try:
            print(f"tokenizer  {tokenizer_file}: {vocabulary:,} tokens; {end_text}")
            print(f"input      {len(files)} files, {sum(f.stat().st_size for f in files) / 1e6:,.1f} MB", flush=True)
            writer = ShardWriter(writing, vocabulary, options.shard_tokens)
            bar = Bar(sum(f.stat().st_size for f in files))
            count = tokenize_files(tokenizer, files, writer, end_id, options.json_field, bar)
            writer.close()
            if writer.tokens == 0:
                raise TokenizeError("the input holds no text; name files that do")
            about = {
                "tokens": writer.tokens,
                "documents": count,
                "vocabulary": vocabulary,
                "end_token": end_id,
                "tokenizer_sha256": hashlib.sha256(tokenizer_file.read_bytes()).hexdigest(),
                "inputs": [str(f) for f in files],
                "shards": [{"file": name, "tokens": tokens} for name, tokens in writer.shards],
            }
            with open(writing / "tokens.json", "w") as file:
                file.write(json.dumps(about, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            if output.exists():
                shutil.rmtree(output)
            os.rename(writing, output)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
    finally:
        os.close(lock)
    return (
        f"wrote      {writer.tokens:,} tokens of {count:,} documents in {len(writer.shards)} shards: "
        f"octavo train --train-data {output}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def positive(text: str) -> int:
        value = int(text)
        if value < 1:
            raise argparse.ArgumentTypeError("must be at least 1")
        return value

    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="text files, .jsonl files, folders of them")
    parser.add_argument("--tokenizer", required=True, metavar="FILE", help="tokenizer.json, or its folder")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to make; whole or absent")
    parser.add_argument("--json-field", default="text", metavar="NAME", help="of a .jsonl document's text [text]")
    parser.add_argument(
        "--end-token",
        metavar="TOKEN",
        help="put behind each document, or none [the eos_token of tokenizer_config.json]",
    )
    parser.add_argument(
        "--shard-tokens", type=positive, default=100_000_000, metavar="N", help="of one shard [100,000,000]"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the tokens that DIR holds")


def run(options) -> int:
    try:
        print(write_shards(options))
        return 0
    except TokenizeError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or options.output}: {error.strerror}; free some space or check the path"
    print(f"octavo tokenize: {message}", file=sys.stderr)
    return 1
