"""tests/field_cases.md: every row names tests that exist, or the work that brings it."""

import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
TABLE = TESTS / "field_cases.md"
# Work of later releases. A row of this release names tests.
LATER = {"MoE", "GPU", "Python", "distributed"}


def rows():
    section = None
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0] != "input" and not cells[0].startswith("---"):
            yield number, section, cells


def missing_test(reference):
    """What is wrong with "file: name", or None."""
    file, _, name = (part.strip() for part in reference.partition(":"))
    path = TESTS / file
    if not path.is_file():
        return f"{reference}: there is no tests/{file}"
    text = path.read_text()
    if path.suffix == ".py":
        found = re.search(rf"^\s*(async )?def {re.escape(name)}\(", text, re.MULTILINE)
    else:
        suite, _, test = name.partition(".")
        found = re.search(rf"^TEST(_F|_P)?\(\s*{re.escape(suite)},\s*{re.escape(test)}\s*\)", text,
                          re.MULTILINE)
    return None if found else f"{reference}: tests/{file} has no such test"


def test_every_row_names_tests_or_later_work():
    wrong = []
    for number, section, (case, answer, tests) in rows():
        assert case and answer and tests, f"field_cases.md:{number}: an empty cell"
        for reference in tests.split(";"):
            reference = reference.strip()
            kind, _, work = reference.partition(":")
            if kind == "later":
                wrong += [f"{number}: later: {w}" for w in work.split(",") if w.strip() not in LATER]
            else:
                problem = missing_test(reference)
                wrong += [f"{number}: {problem}"] if problem else []
    assert not wrong, "\n".join(f"field_cases.md:{line}" for line in wrong)


def test_the_table_was_read():
    sections = {section for _, section, _ in rows()}
    assert len(sections) == 8
    assert len(list(rows())) >= 45


@pytest.mark.parametrize("reference", ["open: train",
                                       "formats/codec_test.cpp: CodecFieldCases.E4M3FNTo",
                                       "formats/codec_test.cpp: Codec.E4M3FNTop",
                                       "formats/no_test.cpp: Codec.A",
                                       "layers/test_layers.py: test_source"])
def test_a_wrong_name_is_found(reference):
    assert missing_test(reference)
