"""python -m octavo tokenize: text to the shards that `octavo train` reads."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = REPOSITORY / "examples/data/tinyshakespeare.txt"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python")}
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install tokenizers")

import octavo.tokenize as tokenize  # noqa: E402


def octavo(*arguments, code=0, **options):
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "tokenize", *map(str, arguments)],
        capture_output=True, text=True, env=ENVIRONMENT, **options)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def byte_pairs(folder, vocabulary=600, end="<|end|>", **config):
    """GPT-2's kind of tokenizer, trained on a part of the text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[end], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT.read_text()[:100000]], trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def words_with_a_space_in_front(folder):
    """SentencePiece's kind: every text begins with a space, so no text can be cut anywhere."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=False))
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")])
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT.read_text()[:50000].splitlines(), trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def read_shards(folder):
    """By the documented layout."""
    tokens = []
    for path in sorted(folder.glob("*.bin")):
        data = path.read_bytes()
        magic, version, width, count, vocabulary = struct.unpack_from("<8sIIQQ", data)
        assert magic == b"OCTAVOTK" and version == 1 and len(data) == 256 + width * count
        tokens += struct.unpack_from(f"<{count}{'H' if width == 2 else 'I'}", data, 256)
    return tokens, width, vocabulary


def test_tokens_are_the_tokenizers(tmp_path):
    tokenizer = byte_pairs(tmp_path / "tok", eos_token="<|end|>")
    done = octavo(TEXT, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "out", "--shard-tokens", 100000)
    tokens, width, vocabulary = read_shards(tmp_path / "out")
    expected = tokenizer.encode(TEXT.read_text()).ids + [tokenizer.token_to_id("<|end|>")]
    assert tokens == expected and width == 2 and vocabulary == tokenizer.get_vocab_size()
    about = json.loads((tmp_path / "out/tokens.json").read_text())
    assert about["tokens"] == len(tokens) and about["documents"] == 1
    assert [s["tokens"] for s in about["shards"]][:2] == [100000, 100000]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "tok"]
    assert "100%" in done.stderr and f"{len(tokens):,} tokens" in done.stdout


@pytest.mark.parametrize("make", [byte_pairs, words_with_a_space_in_front])
def test_pieces_have_the_tokens_of_the_whole(tmp_path, make):
    """However small the pieces and wherever the blocks end; without newlines too."""
    tokenizer = make(tmp_path / "tok")
    for text in (TEXT.read_text()[:30000], "no line ends " * 500, "\n\n  \n" * 100, "é\n漢字 \n" * 300):
        for block in (97, 1000):
            blocks = [text[i : i + block] for i in range(0, len(text), block)]
            parts = list(tokenize.pieces(tokenizer, blocks, size=500))
            assert "".join(parts) == text
            ids = [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False).ids]
            assert ids == tokenizer.encode(text, add_special_tokens=False).ids
    if make is byte_pairs:
        text = TEXT.read_text()
        parts = list(tokenize.pieces(tokenizer, [text[i : i + 400] for i in range(0, 30000, 400)], size=500))
        assert len(parts) > 20  # it does cut


def test_documents_of_a_folder(tmp_path):
    tokenizer = byte_pairs(tmp_path / "tok")
    folder = tmp_path / "texts"
    folder.mkdir()
    rows = [{"body": "one two\nthree"}, {"body": "four"}, {"body": ""}]
    (folder / "a.jsonl").write_text("\n\n".join(json.dumps(r) for r in rows) + "\n")
    (folder / "b.txt").write_text("five")
    (folder / "ignored.bin").write_bytes(b"\xff")
    octavo(folder, "--tokenizer", tmp_path / "tok/tokenizer.json", "--output", tmp_path / "out",
           "--json-field", "body", "--end-token", "<|end|>")
    end = tokenizer.token_to_id("<|end|>")
    expected = []
    for text in ("one two\nthree", "four", "five"):
        expected += tokenizer.encode(text).ids + [end]
    assert read_shards(tmp_path / "out")[0] == expected


def test_large_vocabularies_have_four_bytes(tmp_path):
    tokenizer = byte_pairs(tmp_path / "tok")
    tokenizer.add_tokens([f"<extra {i}>" for i in range(70000)])
    tokenizer.save(str(tmp_path / "tok/tokenizer.json"))
    (tmp_path / "a.txt").write_text("to be <extra 69999>")
    octavo(tmp_path / "a.txt", "--tokenizer", tmp_path / "tok", "--output", tmp_path / "out", "--end-token", "none")
    tokens, width, vocabulary = read_shards(tmp_path / "out")
    assert width == 4 and vocabulary == 70600 and tokens[-1] == 70599


def test_the_trainer_reads_them(tmp_path):
    command = Path(os.environ.get("OCTAVO_BUILD_DIR", REPOSITORY / "build")).resolve() / "apps/octavo/octavo"
    if not command.exists():
        pytest.skip(f"{command} is not built")
    byte_pairs(tmp_path / "tok")
    octavo(TEXT, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "out", "--shard-tokens", 90000)

    def train(*arguments):
        return subprocess.run(
            [command, "train", "--preset", "debug", "--train-data", tmp_path / "out", "--steps", "2", "--batch",
             "2", "--sequence", "32", "--validation-batches", "1", "--threads", "1", "--run-dir",
             tmp_path / "run", *arguments], capture_output=True, text=True)

    small = train()
    assert small.returncode == 1 and "vocabulary of 600" in small.stderr, small
    good = train("--vocabulary", "600")
    assert good.returncode == 0, good
    assert "training and" in good.stdout


def test_a_killed_run_leaves_nothing_in_the_way(tmp_path):
    byte_pairs(tmp_path / "tok")
    for i in range(40):
        (tmp_path / f"{i}.txt").write_bytes(TEXT.read_bytes())
    arguments = [*tmp_path.glob("*.txt"), "--tokenizer", tmp_path / "tok", "--output", tmp_path / "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", "tokenize", *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    writing = tmp_path / ".out.writing"
    for _ in range(600):
        if writing.is_dir() and any(writing.iterdir()):
            break
        time.sleep(0.05)
    busy = octavo(TEXT, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "out", code=1)
    assert "another tokenize" in busy.stderr
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert writing.is_dir() and not (tmp_path / "out").exists()
    octavo(TEXT, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "out")
    assert not writing.exists() and (tmp_path / "out/tokens.json").exists()


def test_overwrite(tmp_path):
    byte_pairs(tmp_path / "tok")
    arguments = [TEXT, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "out"]
    octavo(*arguments)
    assert "--overwrite" in octavo(*arguments, code=1).stderr
    octavo(*arguments, "--overwrite", "--shard-tokens", 200000)
    assert len(list((tmp_path / "out").glob("*.bin"))) > 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    error = octavo(TEXT, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "mine", "--overwrite", code=1)
    assert "no folder of tokens" in error.stderr and (tmp_path / "mine/thesis.txt").exists()


def test_errors_are_one_line(tmp_path):
    byte_pairs(tmp_path / "tok")
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "latin.txt").write_bytes(b"a" * 300000 + "é".encode("latin-1") + b" b")
    (bad / "torn.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (bad / "field.jsonl").write_text('{"body": "a"}\n')
    (bad / "empty.txt").write_text("")
    (bad / "none.json").write_text("[]")
    tok = tmp_path / "tok"
    for arguments, parts in [
        ([bad / "latin.txt"], ["latin.txt", "byte 300000", "UTF-8"]),
        ([bad / "torn.jsonl"], ["torn.jsonl:2", "no JSON"]),
        ([bad / "field.jsonl"], ["field.jsonl:1", '"text"', "body", "--json-field"]),
        ([bad / "empty.txt"], ["no text"]),
        ([bad / "nowhere.txt"], ["nowhere.txt", "no such file"]),
        ([TEXT, "--tokenizer", bad], ["no file", "tokenizer.json"]),
        ([TEXT, "--tokenizer", bad / "none.json"], ["is no tokenizer.json"]),
        ([TEXT, "--end-token", "</s>"], ["--end-token", "'</s>'"]),
    ]:
        if "--tokenizer" not in arguments:
            arguments = [*arguments, "--tokenizer", tok]
        error = octavo(*arguments, "--output", tmp_path / "out", code=1).stderr
        last = error.splitlines()[-1]
        assert last.startswith("octavo tokenize: ") and "Traceback" not in error
        assert all(part in last for part in parts), last
        assert not (tmp_path / "out").exists() and not (tmp_path / ".out.writing").exists()
