"""An index of words that an older version wrote is searched at once, and renewed in the background."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.words import fields, writer
from agentformer.index.words.fields import ANALYSIS
from agentformer.index.words.writer import write_manifest
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.faiss.indexes import Indexes
from agentformer.testing import make_entry
from agentformer.text import analysis
from agentformer.types import Query
from tests.records import former_store

CODE = 'def read_{0}_rows(path):\n    """Return the rows."""\n    table = open(path)\n    return table.split("{0}")\n'
NAMES = ["alpha", "bravo", "charlie", "delta", "echo"]


def open_store(folder: Path) -> FaissMemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder(), Indexes)


def found(backend: FaissMemoryBackend, query: str) -> list[str]:
    return [hit.entry.content for hit in backend.search(Query(query, limit=50, mode="lexical"))]


def state(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "words" / "manifest.json").read_text())["state"])


@pytest.fixture
def former(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose words the former version has analyzed: code was prose, and parts of identifiers were no stems."""
    with monkeypatch.context() as patched:
        patched.setattr(analysis, "is_code", lambda text: False)
        backend = open_store(tmp_path)
        backend.store([*(make_entry(CODE.format(name)) for name in NAMES), make_entry("Alpha is a letter.")])
        assert len(found(backend, "rows")) == 5
        backend.close()
    write_manifest(tmp_path / "words", {**state(tmp_path), "analysis": 3})
    return tmp_path


def scores(folder: Path) -> list[float]:
    """The scores of the code after all changes are written."""
    backend = open_store(folder)
    assert found(backend, "rows")
    finish(backend)
    hits = backend.search(Query("alpha rows", limit=50, mode="lexical"))
    backend.close()
    return [hit.score for hit in hits]


def finish(backend: FaissMemoryBackend) -> None:
    """Wait until the renewal in the background is complete or has failed."""
    backend._indexes.search._words._renewal.wait()


def test_searches_go_on_during_a_renewal_and_see_its_result(former: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    examined: list[str] = []

    def wait(content: str, since: int) -> bool:
        examined.append(content)
        assert released.wait(60)
        return fields.terms_changed(content, since)

    monkeypatch.setattr(writer, "terms_changed", wait)
    backend = open_store(former)
    assert len(found(backend, "rows")) == 5  # not blocked by the renewal
    backend.store([make_entry(CODE.format("foxtrot"))])
    assert len(found(backend, "rows")) == 6
    assert state(former)["analysis"] == 3
    released.set()
    finish(backend)
    assert state(former)["analysis"] == ANALYSIS and "renewed" not in state(former)
    assert len(examined) >= 6
    assert len(found(backend, "rows")) == 6
    backend.close()


def test_a_renewed_index_has_the_terms_of_a_new_one(former: Path, tmp_path: Path) -> None:
    renewed = scores(former)
    shutil.rmtree(former / "words")
    assert scores(former) == renewed and len(renewed) == 6


def test_an_interrupted_renewal_goes_on_where_it_stopped(former: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[str] = []
    fails = {4}

    def fail_at_the_fourth(content: str, since: int) -> bool:
        examined.append(content)
        if len(examined) in fails:
            raise OSError("the disk is away")
        return fields.terms_changed(content, since)

    monkeypatch.setattr(writer, "_WRITTEN", 2)
    monkeypatch.setattr(writer, "terms_changed", fail_at_the_fourth)
    backend = open_store(former)
    assert len(found(backend, "rows")) == 5
    finish(backend)
    assert state(former)["analysis"] == 3 and state(former)["renewed"] > 0
    backend.close()
    examined.clear()
    fails.clear()
    backend = open_store(former)
    assert len(found(backend, "rows")) == 5
    finish(backend)
    assert state(former)["analysis"] == ANALYSIS
    assert [name for name in NAMES if any(name in content for content in examined)] == NAMES[2:]
    backend.close()


def test_a_store_of_version_0_1_0_is_renewed(tmp_path: Path) -> None:
    shutil.unpack_archive(Path(former_store.__file__).with_name("former_store.tar.xz"), tmp_path, filter="data")
    assert state(tmp_path / "indexes")["analysis"] == 3
    with former_store.connect(tmp_path) as opened:
        assert isinstance(opened.backend, FaissMemoryBackend)
        assert opened.backend.search(Query("Aino lives in Turku", mode="lexical"))
        finish(opened.backend)
        assert state(tmp_path / "indexes")["analysis"] == ANALYSIS
        assert opened.backend.search(Query("Aino lives in Turku", mode="lexical"))


def test_an_index_that_waits_for_its_renewal_is_sound(former: Path) -> None:
    backend = open_store(former)
    (words,) = [check for check in backend.verify() if check.name == "words"]
    assert (words.looked_at, words.found) == (6, 0)
    backend.close()


def test_an_index_of_an_unknown_version_is_rebuilt(former: Path) -> None:
    write_manifest(former / "words", {**state(former), "analysis": ANALYSIS + 1})
    backend = open_store(former)
    assert len(found(backend, "rows")) == 5
    assert state(former)["analysis"] == ANALYSIS
    backend.close()
