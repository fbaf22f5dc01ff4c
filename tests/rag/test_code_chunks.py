"""Chunks of source code, and how their citations look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import agentformer
from agentformer.cli import main
from agentformer.embedders.guarded import estimated_spans
from agentformer.rag.chunks import PageChunk, cut
from agentformer.readers import read
from agentformer.readers.code import symbols
from agentformer.types import DocumentText

LIMIT = 500
CELLAR = '''"""Doors."""


class Cellar:
    """The cellar of the house."""

    def __init__(self, name):
        self.name = name

    def unlock_the_gate(self, key, times=1):
        """Turn the brass key until the gate opens."""
        for _ in range(times):
            self.turn(key)
        if not self.is_open():
            raise RuntimeError("the gate of the cellar does not open with this key")
        return self.name

    def turn(self, key):
        print("turning", key, "in the lock of the gate, which takes a moment", self.name, key.metal, key.length)
        self.turned = True
        self.keys = [*self.keys, key]
        return [each for each in self.keys if each.metal == "brass" and each.length > self.least_length_of_a_key]
'''
CODE = """def f(a):
class C:
    def m(self):
        return x1
    x = {'a': [1, 2]}
# note
    '''Doc.'''
@wrapped
if a:
    pass
}"""
LINE = st.sampled_from([*CODE.split("\n"), "", "", "\ta\u0301\u0308 = '\xe4\u200b'", "x" * 90, "word " * 40, "\x0c"])


def chunks_of(text: str, name: str, limit: int = LIMIT) -> tuple[DocumentText, list[PageChunk]]:
    document = read(text.encode(), name)
    return document, list(cut(document, name, estimated_spans, limit, 10))


@pytest.mark.process
@settings(max_examples=60, deadline=None)
@given(st.lists(LINE, min_size=1, max_size=80), st.integers(11, 120), st.sampled_from(["a.py", "a.kt", "a.yaml"]))
def test_every_character_is_in_exactly_one_chunk_and_no_chunk_is_too_long(
    lines: list[str], limit: int, name: str
) -> None:
    text = "\n".join(["a = 1", *lines])
    document, chunks = chunks_of(text, name, limit)
    (page,) = document.pages
    seen = 0
    for chunk in chunks:
        assert not page.text[seen : chunk.span.start].strip()
        assert chunk.span.start >= seen and chunk.text == page.text[chunk.span.start : chunk.span.end] and chunk.text
        assert len(estimated_spans(chunk.text)) <= limit
        first, last = chunk.lines or (0, 0)
        stored = page.text.split("\n")[first - page.line : last - page.line + 1]
        assert stored[0].endswith(chunk.text.split("\n")[0]) or chunk.text.split("\n")[0] in stored[0]
        assert len(stored) == chunk.text.rstrip().count("\n") + 1
        seen = chunk.span.end
    assert not page.text[seen:].strip()


@pytest.mark.process
def test_a_method_is_a_chunk_with_its_class_signature_and_documentation() -> None:
    pytest.importorskip("tree_sitter")
    _, chunks = chunks_of(CELLAR, "house/cellar.py")
    assert [(chunk.label, chunk.symbol) for chunk in chunks] == [
        ("lines 1-1", ""),
        ("lines 4-8", "Cellar.__init__"),
        ("lines 10-16", "Cellar.unlock_the_gate"),
        ("lines 18-22", "Cellar.turn"),
    ]
    assert chunks[2].context == (
        "house/cellar.py › Cellar.unlock_the_gate › def unlock_the_gate(self, key, times=1) › "
        "Turn the brass key until the gate opens."
    )
    assert chunks[2].text.startswith("    def unlock_the_gate(self")


@pytest.mark.process
def test_a_long_function_is_split_and_each_part_names_it() -> None:
    body = "\n\n".join(f"    value_{n} = compute({n}, {n} + 1)\n    print(value_{n})" for n in range(60))
    _, chunks = chunks_of(f"def long_one(a):\n{body}\n", "a.py")
    assert len(chunks) > 2
    assert {chunk.symbol for chunk in chunks} == {"long_one"}
    assert all(chunk.context.startswith("a.py › long_one") for chunk in chunks)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "house").mkdir(parents=True)
    (root / "house" / "cellar.py").write_text(CELLAR)
    return root


QUESTION = "How is the gate of the cellar unlocked with a brass key?"


def of_lines(label: str) -> str:
    first, last = map(int, label.removeprefix("lines ").split("-"))
    return "\n".join(CELLAR.split("\n")[first - 1 : last])


@pytest.mark.process
def test_every_door_shows_the_path_and_the_lines(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("tree_sitter")
    places = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    with agentformer.connect(**places) as af:
        af.rag.sync(root)
        hit = af.backend.search(agentformer.types.Query(QUESTION))[0]
        assert hit.entry.source and hit.entry.source.label == "lines 10-16"
        assert {"code": "python", "symbol": "Cellar.unlock_the_gate", "lines": [10, 16], "language": "en"}.items() <= (
            hit.entry.metadata.items()
        )
        for passage in af.rag.context(QUESTION, max_tokens=150).passages:
            assert passage.text.strip() in of_lines(passage.label)
            assert len(passage.text.split("\n")) == len(of_lines(passage.label).split("\n"))
        assert f'source="house/cellar.py ({passage.label})"' in af.rag.context(QUESTION, max_tokens=150).text
        citation = af.rag.query(QUESTION, extractive=True).citations[0]
        assert citation.document == "house/cellar.py"
        assert citation.quote.strip() in of_lines(citation.label)
    arguments = ["ask", QUESTION, *(f"--{name.replace('_', '-')}={value}" for name, value in places.items())]
    output = CliRunner().invoke(main, arguments).output
    assert f"house/cellar.py ({citation.label})" in output


@pytest.mark.process
def test_the_language_of_the_text_in_a_notebook_is_that_of_its_text(tmp_path: Path) -> None:
    text = "Kellarin portti avataan aina avaimella, joka on talonmiehen hallussa eikä kenenkään muun."
    cells = [("markdown", text), ("code", "def avaa(portti):\n    return portti\n")]
    notebook = {"cells": [{"cell_type": kind, "source": source} for kind, source in cells], "metadata": {}}
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        document = af.rag.upload(json.dumps(notebook).encode(), name="a.ipynb")
        prose, code = af.rag.chunks(document.id)
        assert (prose.metadata["language"], code.metadata["language"]) == ("fi", "en")
        assert (prose.source and prose.source.label, code.source and code.source.label) == (
            "cell 1",
            "cell 2, lines 1-2",
        )


def test_the_language_of_code_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "has_grammar", lambda language: False)
    finnish = "# Avaa kellarin portin avaimella, jos portti on kiinni eikä kukaan ole sitä vielä avannut tänään.\n"
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        document = af.rag.upload((finnish + "def avaa(portti):\n    return portti\n").encode(), name="a.py")
        assert {chunk.metadata["language"] for chunk in af.rag.chunks(document.id)} == {"en"}


@pytest.mark.process
def test_the_context_of_a_project_has_code_and_events_beside_the_conversation(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("tree_sitter")
    places = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**places, embedder="hashing", clean_every=0) as af:
        af.rag.sync(root, namespace="house")
        af.memory.store("The gate of the cellar gets a brass key.", kind="decision", namespace="house")
        af.memory.store("The gate of the cellar gets a steel key.", kind="decision", namespace="other")
        context = af.memory.build_context(
            QUESTION, [{"role": "user", "content": "Hello."}], max_tokens=600, namespace="house"
        )
    content = context.messages[0].content
    assert "[Relevant code from codebase]\n" in content
    assert ">house/cellar.py (lines 10-16)\n    def unlock_the_gate(self, key, times=1):\n" in content
    past = content.partition("[Relevant past context]\n")[2]
    assert ">[decision] The gate of the cellar gets a brass key.</memory>" in past
    assert "steel" not in content
    assert context.report.total <= 600
