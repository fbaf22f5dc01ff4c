"""The right to be forgotten: after a scope is removed, no file holds its text, its terms or its vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss import DATABASE_FILE, FaissMemoryBackend
from agentformer.records.database import Database
from agentformer.testing import make_entry
from agentformer.types import Query, Scope

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


def test_no_file_tells_of_a_removed_scope(tmp_path: Path) -> None:
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


def test_another_process_goes_on_after_the_files_went(tmp_path: Path) -> None:
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
