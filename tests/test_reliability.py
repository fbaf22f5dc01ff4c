"""docs/RELIABILITY.md promises nothing that no test proves: every row of its tables names tests, and all are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "RELIABILITY.md"
_TEST = re.compile(r"`(\w+(?:/\w+)*\.py)(?:::(\w+))?`")


def promises() -> Iterator[str]:
    """The rows of tables, without heads and rules."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if line.startswith("|") and above.startswith("|") and not set(line) <= set("|- :"):
            yield line


@cache
def names_in(path: Path) -> frozenset[str]:
    """Test functions of a file, those of classes too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


def missing(row: str) -> Iterator[str]:
    """What a row names that is not there."""
    for file, name in _TEST.findall(row):
        base = ROOT if file.startswith("agentformer/") else ROOT / "tests"  # conformance suites are in the package
        path = base / file
        if not path.is_file():
            yield f"{file} is not there"
        elif name and name not in names_in(path):
            yield f"{file} has no {name}"


def test_every_promise_names_a_test() -> None:
    rows = list(promises())
    assert len(rows) > 40
    assert [row for row in rows if not _TEST.search(row)] == []


def test_every_test_that_is_named_is_there() -> None:
    assert [problem for row in promises() for problem in missing(row)] == []


def test_a_test_that_is_not_there_is_noticed() -> None:
    assert list(missing("| x | `test_reliability.py::test_nothing_of_the_kind`, `gone.py` |")) == [
        "test_reliability.py has no test_nothing_of_the_kind",
        "gone.py is not there",
    ]
