"""The right to be forgotten: after a scope is removed, no file holds its text, its terms or its vectors."""

from __future__ import annotations

import logging
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tantivy
from filelock import FileLock

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreFull
from agentformer.index import files
from agentformer.index.files import INDEX_FILE
from agentformer.index.vectors import training as growth
from agentformer.index.words.fields import schema
from agentformer.index.words.index import WordIndex
from agentformer.memory.backends.faiss.backend import DATABASE_FILE, FaissMemoryBackend
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import Query, Scope
from tests import forked

SECRET = "Xylophonia Quetzalcoatl keeps the zirconium ledger"


def leftovers(folder: Path, *pieces: bytes) -> list[str]:
    """Files that hold one of these bytes."""
    return [
        f"{path.name}: {piece[:20]!r}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        for piece in pieces
        if piece in path.read_bytes()
    ]


def test_no_file_holds_text_of_a_removed_scope(tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    kept = backend.store([make_entry(f"an ordinary fact, number {n}") for n in range(50)])
    secret, other = backend.store([make_entry(SECRET, user_id="x"), make_entry("another of hers", user_id="x")])
    backend.update(secret.id, {"content": f"{SECRET}, and a second version"})
    summary = backend.consolidate(make_entry(f"In short: {SECRET}", kind="summary", user_id="x"), [other.id])
    backend.restore(summary.id)  # restored summaries are archived, and tell no less
    assert backend.search(Query("zirconium", Scope(user_id="x")))
    backend.close()

    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    words = (b"Xylophonia", b"zirconium", b"quetzalcoatl", "zirconium".encode("utf-16-le"))
    assert leftovers(tmp_path, *words)
    row = HashingEmbedder().embed_documents([f"In short: {SECRET}"])[0].astype("<f4")
    halves = row.astype(np.float16)
    assert leftovers(tmp_path, row.tobytes())
    assert backend.remove(Scope(user_id="x")) == 3
    assert not leftovers(tmp_path, *words, row.tobytes(), halves.tobytes())
    assert [hit.entry.id for hit in backend.search(Query("zirconium ledger", mode="lexical"))] == []
    assert len(backend.search(Query("ordinary fact", limit=100))) == len(kept)
    backend.close()
    assert not leftovers(tmp_path, *words, row.tobytes(), halves.tobytes())
    for table in ("history", "windows", "vectors", "pending"):
        with Database(tmp_path / DATABASE_FILE).reading() as connection:
            count = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        assert count == {"windows": 50, "vectors": 50}.get(table, 0)


def test_another_process_goes_on_after_index_files_are_deleted(tmp_path: Path) -> None:
    one, other = (FaissMemoryBackend(tmp_path, HashingEmbedder()) for _ in range(2))
    one.store([make_entry("a kept numbat"), make_entry("a forgotten numbat", user_id="x")])
    assert len(one.search(Query("numbat"))) == len(other.search(Query("numbat"))) == 2
    one.remove(Scope(user_id="x"))
    for backend in (other, one):
        assert [hit.entry.content for hit in backend.search(Query("numbat"))] == ["a kept numbat"]
    other.store([make_entry("a new numbat")])
    assert len(one.search(Query("numbat", mode="lexical"))) == 2
    one.close()
    other.close()


def in_the_words(folder: Path) -> bool:
    """Tantivy's files share beginnings of terms, so that they must be asked. An index that is gone holds nothing."""
    if not (folder / "words" / "meta.json").exists():
        return False
    searcher = tantivy.Index(schema(), path=str(folder / "words")).searcher()
    return bool(searcher.terms_with_prefix("surface", "zirconium"))


def with_a_secret(folder: Path) -> FaissMemoryBackend:
    """A store whose both indexes are on disk and know it."""
    backend = FaissMemoryBackend(folder, HashingEmbedder())
    backend.store([*(make_entry(f"an ordinary fact, number {n}") for n in range(20)), make_entry(SECRET, user_id="x")])
    assert backend.search(Query("zirconium"))
    backend.close()
    assert in_the_words(folder) and (folder / INDEX_FILE).exists()
    return FaissMemoryBackend(folder, HashingEmbedder())


KILLED = """
import os, signal, sys
from pathlib import Path
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.types import Scope

backend = FaissMemoryBackend(Path(sys.argv[1]), HashingEmbedder())
backend._delete_indexes = lambda: os.kill(os.getpid(), signal.SIGKILL)
backend.remove(Scope(user_id="x"))
"""


@pytest.mark.process
@pytest.mark.fault
def test_opening_the_store_finishes_a_killed_removal(tmp_path: Path) -> None:
    with_a_secret(tmp_path).close()
    done = forked.ended(forked.program(KILLED, tmp_path))
    assert done.returncode == -signal.SIGKILL
    assert in_the_words(tmp_path)
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    assert backend.count(Scope(user_id="x")) == 0
    assert not in_the_words(tmp_path) and not (tmp_path / INDEX_FILE).exists()
    backend.close()
    assert not leftovers(tmp_path, b"Xylophonia", b"zirconium") and not in_the_words(tmp_path)


@pytest.mark.parametrize("again", ["removal", "search", "closing", "opening"])
def test_a_failed_deletion_of_index_files_is_no_error_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, again: str
) -> None:
    def fail(*_: object) -> None:
        raise StoreFull("no room at all")

    backend = with_a_secret(tmp_path)
    monkeypatch.setattr(files, "_RETRY_SECONDS", 0.0)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "agentformer"):
        patch.setattr(Database, "clear_log", fail)
        patch.setattr(WordIndex, "discard", fail)
        assert backend.remove(Scope(user_id="x")) == 1
        if again == "opening":
            backend.close()
    assert caplog.text.count("no room at all") >= 2 and in_the_words(tmp_path)
    assert not (tmp_path / INDEX_FILE).exists() or again == "opening"  # one that fails does not keep the other
    if again == "removal":
        assert backend.remove(Scope(user_id="x")) == 0
    elif again == "search":
        assert len(backend.search(Query("ordinary fact", limit=100))) == 20
    elif again == "closing":
        backend.close()
    else:
        backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    assert not in_the_words(tmp_path)
    backend.close()
    assert not leftovers(tmp_path, b"Xylophonia", b"zirconium") and not in_the_words(tmp_path)


def test_removing_by_id_is_no_error_when_the_log_cannot_be_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreFull("no room at all")

    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    (entry,) = backend.store([make_entry("one")])
    monkeypatch.setattr(Database, "clear_log", fail)
    assert backend.remove([entry.id]) == 1
    backend.close()


def test_a_snapshot_being_written_by_another_process_is_deleted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = with_a_secret(tmp_path)
    late = (tmp_path / INDEX_FILE).read_bytes()
    monkeypatch.setattr("agentformer.index.vectors.follower._DISCARD_SECONDS", 0.0)
    with FileLock(tmp_path / growth.LOCK_FILE):
        assert backend.remove(Scope(user_id="x")) == 1
        (tmp_path / INDEX_FILE).write_bytes(late)  # its last step, after the removal
    other = FaissMemoryBackend(tmp_path, HashingEmbedder())
    assert not (tmp_path / INDEX_FILE).exists()
    other.close()
    backend.close()


@pytest.mark.process
def test_quarantined_and_unfinished_files_are_deleted(tmp_path: Path) -> None:
    backend = with_a_secret(tmp_path)
    child = subprocess.Popen(["true"])
    child.wait(60)
    unfinished = tmp_path / f".{INDEX_FILE}.{child.pid}.1"
    unfinished.write_text("zirconium")
    aside = tmp_path / f"{INDEX_FILE}.damaged"
    aside.mkdir()
    (aside / "x").write_text("zirconium")
    (tmp_path / "words.damaged").write_text("zirconium")
    assert backend.remove(Scope(user_id="x")) == 1
    assert not unfinished.exists() and not aside.exists() and not leftovers(tmp_path, b"zirconium")
    backend.close()
