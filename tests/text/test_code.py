"""Source code is told from prose by its look, and its words are counted honestly."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from agentformer.text.analysis import query_terms, stored_terms
from agentformer.text.code import is_code

PYTHON = '''def get_user_name(path, default=None):
    """Return the name of the owner of a file.

    Falls back to the default.
    """
    # symbolic links are followed
    owner = os.path.realpath(path)
    if owner is None:
        return default
    for part in owner.split("/"):
        default = part
    return default
'''
CODE = {
    "python": PYTHON,
    "one line": "def dtype(self): return self.data.dtype",
    "javascript": "export function add(a, b) {\n  // sums\n  const total = a + b;\n  return total;\n}\n",
    "java": "public class Point {\n  private final int x;\n\n  public int getX() {\n    return x;\n  }\n}\n",
    "c": '#include <stdio.h>\n\nint main(void) {\n    printf("hello\\n");\n    return 0;\n}\n',
    "go": "package main\n\nfunc Add(a int, b int) int {\n\treturn a + b\n}\n",
    "rust": "impl Point {\n    pub fn norm(&self) -> f64 {\n        (self.x * self.x).sqrt()\n    }\n}\n",
    "with a licence": "# Copyright (c) 2006, A. Author\n" + "# All rights reserved by the author.\n" * 90 + PYTHON,
}
PROSE = {
    "sentence": "The caretaker keeps the keys in the cupboard.",
    "with brackets": "The club (founded 1957; see [3]) has 40 members; fees = 20 euros (students 10).",
    "with a call": "Use `open(path)` to read a file.\nThen call close().\nThe file is closed at the end of the block.",
    "question": "How do I import a class from another file in Python?",
    "headings": "# Installation\n\nInstall the package first. Then start it (port 8808).\n\n# Usage\n\nAsk.",
    "table": "Total assets   2,300   2,150\nTotal liabilities   1,100   900\nFor the years ended:\n",
    "mail": "From: Anna\nTo: Ben\n\nfor the meeting on Friday: please bring\n- the key (blue)\n- the list\n",
    "empty": "",
}


@pytest.mark.parametrize("name", CODE)
def test_code_is_told_by_its_look(name: str) -> None:
    assert is_code(CODE[name])
    assert stored_terms(CODE[name], "et")[0] == "en"


@pytest.mark.parametrize("name", PROSE)
def test_prose_is_no_code(name: str) -> None:
    assert not is_code(PROSE[name])


def test_prose_that_quotes_code_stays_prose() -> None:
    sentences = "The function returns the name of the owner.\nIt needs the path of a file.\nIt follows links.\n"
    assert not is_code(sentences * 5 + PYTHON)


def test_a_part_of_an_identifier_counts_once() -> None:
    """The name defines the code, so its parts count once more; other words of statements count once."""
    counts = Counter(stored_terms(PYTHON)[1].stems)
    assert counts["en~user"] == counts["get_user_name"] == 2
    assert counts["en~default"] == 2  # once in the documentation, once in all statements
    assert counts["en~owner"] == 2
    assert stored_terms(PYTHON)[1].parts == ()


def test_comments_are_prose_of_english() -> None:
    stems = stored_terms(PYTHON)[1].stems
    assert {"en~symbol", "en~link", "en~fall"} <= {*stems}


@pytest.mark.parametrize(
    "query", ["get_user_name", "getUserName", "user name", "os.path.realpath", "realpath", "links"]
)
def test_code_is_found_by_identifiers_their_parts_and_words_of_comments(query: str) -> None:
    language, stored = stored_terms(PYTHON)
    asked = query_terms(query, [language])
    assert {*asked.stems} <= {*stored.stems}


def test_any_text_is_analyzed() -> None:
    chance = random.Random(0)
    pieces = [
        "def f(x):\n",
        '"""',
        "'''",
        "/*",
        "*/",
        "#",
        "//",
        "(",
        "{",
        "=",
        ";",
        "é",
        "\n",
        "a.b.c",
        "日本",
        "\ud800x",
    ]
    for _ in range(300):
        text = "".join(chance.choices(pieces, k=chance.randrange(40)))
        assert all(term and not set(term) & set(" \n") for term in stored_terms(text)[1].stems)
