"""One word index shared by processes with different analyzers, which do not rebuild each other's entries forever."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tantivy

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.words.fields import AnalyzedEntry, schema
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
from agentformer.testing import make_entry
from agentformer.text.language_extras import PLAIN, Analyzers, Detector, Splitter, Sudachi
from agentformer.types import Query
from tests.forked import start
from tests.index.test_training import IMPORTS

# Written one way and asked for in another, which only a dictionary knows to be the same word: "apples".
WRITTEN, ASKED = "林檎は明日です", "りんご"

PROCESS = """
import sys
from pathlib import Path
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
from agentformer.testing import make_entry
from agentformer.text.language_extras import Analyzers
from agentformer.text.language_extras import Sudachi
from agentformer.types import Query

analyzers = Analyzers(japanese=Sudachi(required=True)) if kind == "more" else Analyzers()
backend = FaissMemoryBackend(Path(folder), HashingEmbedder(), FaissOptions(analyzers=analyzers))
for line in sys.stdin:
    command, _, text = line.strip().partition(" ")
    if command == "store":
        backend.store([make_entry(each) for each in text.split("|")])
        print("stored", flush=True)
    else:
        hits = backend.search(Query(text, limit=50, mode="lexical"))
        print("|".join(sorted(hit.entry.content for hit in hits)), flush=True)
backend.close()
"""


class Process:
    """A process that stores and searches, and is asked by lines."""

    def __init__(self, folder: Path, kind: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
        code = f"folder, kind = {str(folder)!r}, {kind!r}\n{PROCESS}"
        self._child = start(code, IMPORTS, cwd=folder, env=os.environ, **pipes)

    def ask(self, line: str) -> str:
        assert self._child.stdin and self._child.stdout
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()
        return self._child.stdout.readline().strip()

    def end(self) -> str:
        """What it logged."""
        _, told = self._child.communicate(timeout=60)
        assert self._child.returncode == 0, told
        return told


@contextmanager
def process(folder: Path, kind: str) -> Iterator[Process]:
    one = Process(folder, kind)
    try:
        yield one
    finally:
        one.end()


def noted(folder: Path) -> dict[str, int]:
    """How many entries of the index on disk name each analyzer, and how many there are."""
    index = tantivy.Index(schema(), path=str(folder / "words"))
    index.reload()
    searcher = index.searcher()
    found = {"": int(searcher.num_docs)}
    for name, _ in searcher.terms_with_prefix("analysers", ""):
        found[name] = searcher.search(tantivy.Query.term_query(index.schema, "analysers", name, "basic"), 100).count
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "words").iterdir()) if "lock" not in path.name}


@pytest.fixture
def sudachi() -> None:
    pytest.importorskip("sudachipy")


@pytest.mark.process
def test_a_process_with_more_analyzers_updates_entries_and_one_with_fewer_does_not(
    tmp_path: Path, sudachi: None
) -> None:
    with process(tmp_path, "less") as less:
        assert less.ask(f"store {WRITTEN}|kahvi on kuumaa|tea is hot|coffee is hot|茶は熱い") == "stored"
        assert less.ask(f"search {ASKED}") == ""
    assert noted(tmp_path) == {"": 5}
    with process(tmp_path, "more") as more:
        assert more.ask(f"search {ASKED}") == WRITTEN
        assert more.ask("search coffee") == "coffee is hot"
    assert noted(tmp_path) == {"": 5, "sudachi": 2}  # what is not Japanese stays as it was
    made = files(tmp_path)
    less = Process(tmp_path, "less")
    assert less.ask("search 明日") == WRITTEN
    assert less.ask("search tea") == "tea is hot"
    assert "made with the analyzer sudachi" in less.end()
    assert files(tmp_path) == made
    with process(tmp_path, "more") as more:
        assert more.ask(f"search {ASKED}") == WRITTEN
    assert files(tmp_path) == made


@pytest.mark.process
def test_processes_that_write_in_turn_come_to_rest(tmp_path: Path, sudachi: None) -> None:
    with process(tmp_path, "less") as less, process(tmp_path, "more") as more:
        for n in range(2):
            assert less.ask(f"store {WRITTEN} {n}a") == "stored"
            assert more.ask(f"store {WRITTEN} {n}b") == "stored"
            assert len(less.ask("search 明日").split("|")) == 2 * n + 2
            assert len(more.ask("search 明日").split("|")) == 2 * n + 2
    more_here = Analyzers(japanese=Sudachi(required=True))
    assert len(asked(tmp_path, more_here, ASKED)) == 4
    assert noted(tmp_path) == {"": 4, "sudachi": 4}
    made = files(tmp_path)
    for analyzers in (PLAIN, more_here, PLAIN, more_here):
        assert len(asked(tmp_path, analyzers, "明日")) == 4
    assert files(tmp_path) == made


class Shouting(Splitter):
    name, extra, lacking = "shouting", "fi", "nothing"

    def _load(self) -> None: ...

    def _words(self, written: str) -> tuple[str, ...]:
        return (written + "shouted",)


class Deciding(Detector):
    name, extra, lacking = "deciding", "lang", "nothing"

    def _load(self) -> None: ...

    def _detect(self, text: str) -> tuple[str, float]:
        return "fi", 1.0


def opened(folder: Path, analyzers: Analyzers) -> FaissMemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder(), FaissOptions(analyzers=analyzers))


def asked(folder: Path, analyzers: Analyzers, text: str = "kahvi") -> list[str]:
    backend = opened(folder, analyzers)
    hits = backend.search(Query(text, limit=10, mode="lexical"))
    backend.close()
    return [hit.entry.content for hit in hits]


def test_two_processes_with_different_analyzers_do_not_undo_each_other(tmp_path: Path) -> None:
    one, other = Analyzers(finnish=Shouting(required=True)), Analyzers(detector=Deciding(required=True))
    backend = opened(tmp_path, one)
    backend.store([make_entry("Kahvi on kuumaa, koska se on juuri keitetty.")])
    backend.close()
    assert asked(tmp_path, one) and noted(tmp_path) == {"": 1, "shouting": 1}
    made = files(tmp_path)
    assert asked(tmp_path, other) and asked(tmp_path, PLAIN) and asked(tmp_path, one)
    assert files(tmp_path) == made
    both = Analyzers(detector=other.detector, finnish=one.finnish)
    assert asked(tmp_path, both) and noted(tmp_path) == {"": 1, "shouting": 1, "deciding": 1}
    made = files(tmp_path)
    assert asked(tmp_path, one) and asked(tmp_path, other) and asked(tmp_path, both)
    assert files(tmp_path) == made


def test_a_process_without_the_detector_finds_its_language_and_reports_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = opened(tmp_path, Analyzers(detector=Deciding(required=True)))
    backend.store([make_entry("hopeinen kahvikuppi")])
    assert [hit.entry.content for hit in backend.search(Query("kahvikupit", mode="lexical"))]
    backend.close()
    with caplog.at_level(logging.WARNING, "agentformer"):
        backend = opened(tmp_path, PLAIN)
        assert [hit.entry.content for hit in backend.search(Query("kahvikupit", mode="lexical"))]
        checks: list[Any] = [check for check in backend.verify() if check.name == "words"]
    assert "made with the analyzer deciding" in caplog.text
    assert [check.findings for check in checks] == [()] and checks[0].looked_at == 1
    backend.close()


def test_an_analyzer_that_cannot_be_loaded_is_not_named_in_the_index(tmp_path: Path) -> None:
    class Broken(Shouting):
        def _load(self) -> None:
            raise OSError("no dictionary")

    entry = make_entry("Kahvi on kuumaa, koska se on juuri keitetty.")
    assert AnalyzedEntry.of(1, entry, Analyzers(finnish=Shouting(required=True))).analyzers == ("shouting",)
    assert AnalyzedEntry.of(1, entry, Analyzers(finnish=Broken(required=False))).analyzers == ()
    assert (
        AnalyzedEntry.of(
            1, make_entry("tea is hot and it is good"), Analyzers(finnish=Shouting(required=True))
        ).analyzers
        == ()
    )
