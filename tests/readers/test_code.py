"""The structure of source code: functions, classes and sections, with their lines, from trees and from blank lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

from agentformer.readers import read
from agentformer.readers.code import symbols
from agentformer.readers.code.languages import GRAMMARS, language_of
from agentformer.types import DocumentText, Page, Symbol

PYTHON = '''"""A module."""
import os


class Door:
    """A door of the house."""

    @property
    def key(self) -> str:
        """Return the name of the key.

        It is on the ring.
        """
        return "brass"


# Opens every door.
async def open_all(doors: list[Door], *, slowly: bool = False) -> None:
    for door in doors:
        print(door.key)
'''
SAMPLES = {
    "a.py": (PYTHON, ["Door 5-14", "Door.key 8-14", "open_all 17-20"]),
    "a.js": (
        "// Opens.\nexport const open = (door) => {\n  return door;\n};\n\nclass Door {\n  key() { return 1; }\n}\n",
        ["open 1-4", "Door 6-8", "Door.key 7-7"],
    ),
    "a.ts": ("interface Door { key: string }\nexport function open(door: Door): void {\n}\n", ["Door 1-1", "open 2-3"]),
    "a.tsx": ("export function App() {\n  return <b>1</b>;\n}\n", ["App 1-3"]),
    "A.java": ('class Door {\n  /** Returns it. */\n  String key() { return ""; }\n}\n', ["Door 1-4", "Door.key 2-3"]),
    "a.go": (
        'package a\n\n// Key returns it.\nfunc (d *Door) Key() string {\n\treturn ""\n}\n\ntype Door struct{}\n',
        ["Door.Key 3-6", "Door 8-8"],
    ),
    "a.rs": (
        "#[derive(Debug)]\nstruct Door;\n\nimpl Door {\n    fn key(&self) {}\n}\n",
        ["Door 1-2", "Door 4-6", "Door.key 5-5"],
    ),
    "a.c": (
        "struct door { int key; };\n\nstatic char *open(struct door *d)\n{\n  return 0;\n}\n",
        ["door 1-1", "open 3-6"],
    ),
    "a.cpp": (
        "namespace house {\nclass Door {\n  int key() { return 1; }\n};\n}\nint house::Door::open() {\n return 2;\n}\n",
        ["house 1-5", "house.Door 2-4", "house.Door.key 3-3", "house.Door.open 6-8"],
    ),
    "a.cs": (
        "namespace House {\n  class Door {\n    int Key() { return 1; }\n  }\n}\n",
        ["House 1-5", "House.Door 2-4", "House.Door.Key 3-3"],
    ),
    "a.rb": (
        "module House\n  class Door\n    def key\n      1\n    end\n  end\nend\n",
        ["House 1-7", "House.Door 2-6", "House.Door.key 3-5"],
    ),
    "a.php": ("<?php\nclass Door {\n  function key() { return 1; }\n}\n", ["Door 2-4", "Door.key 3-3"]),
    "a.yaml": ("door:\n  key: brass\nhouse: big\n", ["door 1-2", "door.key 2-2", "house 3-3"]),
    "a.toml": ("[door]\nkey = 1\n\n[[house]]\nsize = 2\n", ["door 1-2", "door.key 2-2", "house 4-5", "house.size 5-5"]),
    "a.json": ('{\n  "door": {\n    "key": 1\n  }\n}\n', ["door 2-4", "door.key 3-3"]),
    "a.sql": (
        "-- Doors.\nCREATE TABLE door (\n  key INT\n);\n\nCREATE VIEW brass AS SELECT 1;\n",
        ["door 1-4", "brass 6-6"],
    ),
    "a.sh": ("# Opens.\nopen() {\n  echo 1\n}\n", ["open 1-4"]),
}


def page_of(text: str, name: str) -> Page:
    (page,) = read(text.encode(), name).pages
    return page


def placed(page: Page) -> list[str]:
    return [f"{each.name} {line(page, each.start)}-{line(page, each.end - 1)}" for each in page.symbols]


def line(page: Page, offset: int) -> int:
    return page.line + page.text.count("\n", 0, offset)


def test_each_grammar_has_a_sample() -> None:
    assert {language_of(name) for name in SAMPLES} == GRAMMARS.keys()


@pytest.mark.process
@pytest.mark.parametrize("name", SAMPLES)
def test_symbols_have_names_and_exact_lines(name: str) -> None:
    if not symbols.has_grammar(language_of(name)):
        pytest.skip("the extra code is not installed")
    text, expected = SAMPLES[name]
    page = page_of(text, name)
    assert (page.code, placed(page)) == (language_of(name), expected)
    assert all(page.text[each.start - 1 : each.start] in ("", "\n") for each in page.symbols)


@pytest.mark.process
def test_a_symbol_has_its_signature_and_documentation() -> None:
    pytest.importorskip("tree_sitter")
    about = {each.name: each.about for each in page_of(PYTHON, "a.py").symbols}
    assert about == {
        "Door": "class Door › A door of the house.",
        "Door.key": "def key(self) -> str › Return the name of the key.",
        "open_all": "async def open_all(doors: list[Door], *, slowly: bool = False) -> None › Opens every door.",
    }


@pytest.mark.parametrize("name", ["a.py", "a.kt", "a.ini", "Makefile"])
def test_without_a_grammar_blank_lines_and_indentation_give_the_symbols(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symbols, "has_grammar", lambda language: False)
    texts = {
        "a.py": PYTHON,
        "a.kt": "class Door {\n    fun key() = 1\n}\n\nfun open(door: Door) {\n    println(1)\n}\n",
        "a.ini": "[door]\nkey = 1\n\n[house]\nsize = 2\n",
        "Makefile": "all: door\n\tmake door\n\ndoor:\n\techo 1\n",
    }
    expected = {
        "a.py": ["Door 5-14", "open_all 17-20"],
        "a.kt": ["Door 1-3", "open 5-7"],
        "a.ini": ["door 1-2", "house 4-5"],
        "Makefile": ["all 1-2", "door 4-5"],
    }
    assert placed(page_of(texts[name], name)) == expected[name]


@pytest.mark.process
def test_lines_count_empty_ones_at_the_beginning_and_line_ends_of_windows() -> None:
    page = page_of("\r\n\r\n\f\ndef key():\r\n    return 1\r\n", "a.py")
    assert (page.line, placed(page)) == (4, ["key 4-5"])


HOSTILE = {
    "deep.py": "(" * 200_000,
    "deep.json": "[" * 200_000,
    "deep.js": "a=>" * 60_000,
    "nested.c": "{" * 50_000 + "}" * 50_000,
    "endless.yaml": "- " * 100_000,
    "quotes.php": "<?php " + '"$' * 100_000,
    "heredocs.rb": "<<A\n" * 20_000,
    "heredocs.sh": "cat <<A\n" * 20_000,
    "lines.sql": "CREATE TABLE a (b INT);\n" * 5_000,
}


@pytest.mark.process
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_source_code_is_read_in_bounded_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tree_sitter")
    monkeypatch.setattr(symbols, "_TEXT_SECONDS", 2.0)
    started = time.monotonic()
    page = page_of(HOSTILE[name], name)
    assert page.text == HOSTILE[name].strip("\n")
    assert time.monotonic() - started < 60  # a bound against hangs, not a measurement


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="the child process is not used there")
def test_after_a_crash_of_the_child_process_the_next_text_has_a_tree() -> None:
    pytest.importorskip("tree_sitter")
    page_of(PYTHON, "a.py")
    child = symbols._worker._process
    assert child is not None
    os.kill(child._process.pid, signal.SIGKILL)
    child._process.wait()
    assert placed(page_of(PYTHON, "a.py")) == SAMPLES["a.py"][1]


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="the child process is not used there")
def test_a_text_that_takes_too_long_gets_the_symbols_of_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tree_sitter")
    monkeypatch.setattr(symbols, "_TEXT_SECONDS", -30.0)
    assert placed(page_of(PYTHON, "a.py")) == ["Door 5-14", "open_all 17-20"]


def test_symbols_of_a_lying_child_are_made_consistent() -> None:
    text = "a\nb\nc\nd\n"
    lies = [
        ("x", 0, 2, ""),
        ("overlaps", 1, 3, ""),
        ("outside", 2, 9, ""),
        ("", 1, 1, ""),
        ("in", 1, 1, ""),
        ("y", 3, 3, ""),
    ]
    parts = [symbols.Part(*each) for each in lies]
    found = list(symbols._nested(symbols._symbols(text, parts)))
    assert found == [Symbol("x", 0, 6), Symbol("in", 2, 4), Symbol("y", 6, 8)]


def notebook(*cells: tuple[str, str], language: str = "python") -> bytes:
    values = [{"cell_type": kind, "source": text.splitlines(keepends=True), "outputs": []} for kind, text in cells]
    return json.dumps({"cells": values, "metadata": {"kernelspec": {"language": language}}, "nbformat": 4}).encode()


@pytest.mark.process
def test_each_cell_of_a_notebook_is_a_page() -> None:
    data = notebook(("markdown", "# Doors\n\nAll of them."), ("code", ""), ("code", "def key():\n    return 1\n"))
    document = read(data, "a.ipynb")
    assert document.title == "Doors"
    assert [(page.label, page.code, page.text) for page in document.pages] == [
        ("cell 1", "", "# Doors\n\nAll of them."),
        ("cell 3", "python", "def key():\n    return 1"),
    ]
    assert placed(document.pages[1]) == ["key 1-2"]


@pytest.mark.process
@pytest.mark.parametrize("data", [b"{", b"[]", b'{"cells": 1}', b'{"cells": [1]}', b"{}", b"[" * 100_000])
def test_a_damaged_notebook_is_an_error_of_the_file(data: bytes) -> None:
    from agentformer.errors import DocumentError

    with pytest.raises(DocumentError):
        if not read(data, "a.ipynb").pages[0].label.startswith("cell"):
            raise DocumentError("read as text")


@pytest.mark.parametrize("page", ["x=1;" * 10_000, "def f():\n    pass\n" + "a" * 20_001])
def test_a_text_with_a_very_long_line_is_not_parsed(monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    asked: list[bytes] = []
    monkeypatch.setattr(symbols._worker, "_ask", lambda data, language: asked.append(data))
    assert symbols._worker.parts(page, "python") is None and not asked


def test_after_a_page_that_cannot_be_parsed_the_next_pages_of_the_file_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(symbols, "has_grammar", lambda language: True)
    monkeypatch.setattr(symbols._worker, "parts", lambda text, language: asked.append(text))
    pages = tuple(Page(number, f"def f{number}():\n    pass", code="python") for number in (1, 2, 3))
    read = symbols.with_symbols(DocumentText("text/x-python", pages))
    assert asked == [pages[0].text] and [page.symbols[0].name for page in read.pages] == ["f1", "f2", "f3"]
