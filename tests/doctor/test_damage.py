"""Each damage of an embedded store is found by its own check and repaired: then a second check finds nothing, and every
entry is found by words and by vectors."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.vectors import IndexOptions
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
from agentformer.records import meta
from agentformer.records.integrity import repair, verify
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import Check, MemoryEntry, Query, Scope, Source

pytestmark = pytest.mark.fault

ENTRIES = 24
FACT = "(SELECT num FROM entries WHERE content LIKE '%number n7 %')"
PLAN = IndexOptions(train_at=20, exact_rows=8, train_after=0.0)  # so that the vector index is a trained one


def opened(folder: Path) -> FaissMemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder(64), FaissOptions(index=PLAN))


def fact(number: int) -> MemoryEntry:
    return make_entry(f"the marmot number n{number} whistles in the valley v{number % 7}", context=f"from {number % 3}")


def document() -> list[MemoryEntry]:
    page_text = "Boats are lifted in October. The caretaker keeps the keys."
    whole = make_entry("rules.txt", kind="document", metadata={"name": "rules.txt"})
    source = Source(whole.id, "rules.txt", 1, "1", 0, len(page_text))
    page = make_entry(page_text, kind="page", parent_id=whole.id, source=source)
    chunk = make_entry(
        page_text[:28], kind="chunk", parent_id=whole.id, source=Source(whole.id, "rules.txt", 1, "1", 0, 28)
    )
    return [whole, page, chunk]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with facts, a long text, a document, a summary, history, and both indexes on disk."""
    folder = tmp_path_factory.mktemp("model")
    backend = opened(folder)
    facts = backend.store([fact(number) for number in range(ENTRIES)])
    backend.store([make_entry("a long tale of the pika. " * 200), *document()])
    backend.update(facts[0].id, {"content": "the marmot number n0 sleeps"})
    backend.update(facts[1].id, {"superseded_by": facts[2].id})
    backend.consolidate(make_entry("marmots whistle", kind="summary"), [facts[3].id, facts[4].id])
    backend.remove([facts[5].id])
    assert backend.embed_pending() == 0
    backend.search(Query("marmot"))
    backend.close()
    return folder


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    shutil.copytree(model, tmp_path / "store")
    return tmp_path / "store"


def sql(*statements: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "memory.sqlite3", isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return damage


def swapped(text: bytes, other: bytes) -> Callable[[Path], None]:
    """Replace bytes of the database file everywhere, in the table and in its indexes."""

    def damage(folder: Path) -> None:
        path = folder / "memory.sqlite3"
        data = path.read_bytes()
        assert len(text) == len(other) and text in data
        path.write_bytes(data.replace(text, other))

    return damage


def flipped(name: str, at: float = 0.5) -> Callable[[Path], None]:
    """Flip one bit of a file."""

    def damage(folder: Path) -> None:
        path = max(folder.glob(name), key=lambda each: each.stat().st_size)
        data = bytearray(path.read_bytes())
        data[int(len(data) * at)] ^= 4
        path.write_bytes(data)

    return damage


def unindexed(folder: Path) -> None:
    """Change a row while SQLite does not know one of its indexes."""
    sql(f"UPDATE entries SET archived_at = 1 WHERE num = {FACT}")(folder)
    with closing(sqlite3.connect(folder / "memory.sqlite3", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        hidden = connection.execute("SELECT * FROM sqlite_master WHERE name = 'entries_live'").fetchone()
        connection.execute("DELETE FROM sqlite_master WHERE name = 'entries_live'")
    sql(f"UPDATE entries SET archived_at = NULL WHERE num = {FACT}")(folder)
    with closing(sqlite3.connect(folder / "memory.sqlite3", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", hidden)


class Damage(NamedTuple):
    make: Callable[[Path], None]
    check: str  # the name of the check that finds it
    message: str  # in the finding


DAMAGES = {
    "a changed text": Damage(
        sql(f"UPDATE entries SET content = 'the marmot number n7 lies' WHERE num = {FACT}"), "entries", "checksum"
    ),
    "a flipped bit in a text": Damage(swapped(b"number n9 whistles", b"number n9 whistlds"), "entries", "checksum"),
    "a text that is not UTF-8": Damage(swapped(b"number n9 whistles", b"number n9 whistl\xff\xfe"), "entries", "entry"),
    "metadata that are no JSON": Damage(
        sql(
            "DROP INDEX entries_by_sha256",
            "DROP INDEX entries_by_name",
            "DROP INDEX entries_by_origin",
            f"UPDATE entries SET metadata = '{{' WHERE num = {FACT}",
            "PRAGMA writable_schema = ON",
        ),
        "entries",
        "damaged",
    ),
    "a changed chunk": Damage(
        sql("UPDATE entries SET content = 'Boats are sold in October' WHERE kind = 'chunk'"), "entries", "checksum"
    ),
    "a changed former version": Damage(
        sql("UPDATE history SET state = replace(state, 'whistles', 'thistles')"), "history", "checksum"
    ),
    "a summary that is gone": Damage(
        sql("UPDATE entries SET archived_by = 'nobody' WHERE archived_by IS NOT NULL"), "links", "is missing"
    ),
    "an original that is not hidden": Damage(
        sql("UPDATE entries SET archived_at = NULL WHERE archived_by IS NOT NULL"), "links", "is not archived"
    ),
    "an entry that no index learns of": Damage(
        sql(f"DELETE FROM changes WHERE entry = {FACT}"), "changes", "not in the change feed"
    ),
    "an end without a token": Damage(
        sql("DELETE FROM points WHERE seq = (SELECT max(seq) FROM points)"), "changes", "the newest token belongs to"
    ),
    "a lease of another clock": Damage(
        sql("INSERT INTO leases VALUES ('cleaning', 'me', (unixepoch() + 9999) * 1000000, 1000000)"),
        "leases",
        "a clock that was ahead",
    ),
    "a changed vector": Damage(
        sql("UPDATE vectors SET data = zeroblob(length(data)) WHERE id = 9"), "vectors", "vector 9 is damaged"
    ),
    "a vector of unit length no more": Damage(
        sql("UPDATE vectors SET data = zeroblob(length(data)), checksum = NULL WHERE id = 9"),
        "vectors",
        "not a unit vector",
    ),
    "a vector that is too short": Damage(
        sql("UPDATE vectors SET data = x'00', checksum = NULL WHERE id = 9"), "vectors", "vector 9"
    ),
    "a vector that is gone": Damage(sql("DELETE FROM vectors WHERE id = 9"), "windows", "without its vector"),
    "a vector of another text": Damage(
        sql("UPDATE vectors SET hash = zeroblob(32) WHERE id = 9"), "windows", "vector of another text"
    ),
    "an entry without windows": Damage(sql(f"DELETE FROM windows WHERE entry = {FACT}"), "windows", "has no windows"),
    "text in no window": Damage(
        sql(
            "DELETE FROM windows WHERE id = (SELECT max(id) FROM windows WHERE entry = "
            "(SELECT num FROM entries WHERE content LIKE '%pika%'))"
        ),
        "windows",
        "text outside of all windows",
    ),
    "a window beyond the text": Damage(
        sql(f"UPDATE windows SET span_end = 9999 WHERE entry = {FACT}"), "windows", "from 0 to 9999"
    ),
    "windows of nobody": Damage(
        sql("INSERT INTO windows (space, entry, span_start, span_end, vector) VALUES (1, 99999, 0, 1, 1)"),
        "windows",
        "belong to no entry",
    ),
    "vectors and waiting for them": Damage(
        sql(f"INSERT INTO pending VALUES ({FACT}, 1, 'away', 0)"),
        "windows",
        "waits for its vectors, but already has some of them",
    ),
    "a row that refers to nothing": Damage(
        sql("INSERT INTO pending VALUES (99999, 1, 'away', 0)"), "database", "refers to a missing row of entries"
    ),
    "an index that lacks a row": Damage(unindexed, "database", "missing from index entries_live"),
    "a flipped bit in the saved vectors": Damage(flipped("rag_faiss_index.bin"), "snapshot", "is damaged"),
    "a flipped bit in what describes them": Damage(flipped("rag_faiss_meta.json"), "snapshot", "is damaged"),
    "a flipped bit in the word index": Damage(flipped("words/*.term"), "words", "is damaged"),
}


def found(checks: Sequence[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks if check.found}


def not_findable(backend: FaissMemoryBackend) -> Iterator[str]:
    """Yield live entries that words or vectors do not find by their own text."""
    for entry in backend.list(Scope(kinds=("fact", "chunk")), limit=1000):
        for mode in ("lexical", "dense"):
            hits = backend.search(Query(entry.content[:300], limit=3, mode=mode))  # type: ignore[arg-type]
            if entry.id not in [hit.entry.id for hit in hits]:
                yield f"{mode}: {entry.content}"


def test_a_store_that_was_used_is_sound(folder: Path) -> None:
    with closing(opened(folder)) as backend:
        checks = backend.verify()
    assert found(checks) == {}
    looked_at = {check.name: check.looked_at for check in checks}
    assert looked_at["entries"] == ENTRIES - 1 + 1 + 3 + 1
    assert looked_at["words"] == looked_at["windows"] == ENTRIES - 1 + 1 + 1 + 1
    assert looked_at["snapshot"] > 0 and looked_at["history"] == 2 and looked_at["links"] == 2
    assert all(check.asked and not check.findings for check in checks)


@pytest.mark.parametrize("what", DAMAGES)
def test_each_damage_is_found_by_its_check_and_repaired(folder: Path, what: str) -> None:
    damage, check, message = DAMAGES[what]
    damage(folder)
    with closing(opened(folder)) as backend:
        first = found(backend.verify())
        assert list(first) == [check], first
        assert any(message in text for text in first[check].findings), first[check].findings
        assert first[check].mended == 0
        again = found(backend.verify())
        assert again == first  # a check changes nothing
        repaired = found(backend.verify(repair=True))
        assert check in repaired and all(each.mended == each.found for each in repaired.values()), repaired
        assert found(backend.verify()) == {}
        assert list(not_findable(backend)) == []
    with closing(opened(folder)) as backend:
        assert found(backend.verify()) == {}


def test_a_damaged_secure_delete_request_is_recorded_again(folder: Path) -> None:
    """A removal was killed before the files were cleared, and then its request was damaged."""
    database = Database(folder / "memory.sqlite3")
    with database.writing() as connection:
        meta.request_secure_delete(connection)
    database.close()
    sql("UPDATE meta SET value = 'x' WHERE key = 'erasure_due'")(folder)
    database = Database(folder / "memory.sqlite3")
    with closing(database):
        with database.reading() as connection:
            findings = verify.metadata(connection)
        assert findings.found == 1
        repair.metadata(database, findings, Quarantine(folder))
        with database.reading() as connection:
            assert meta.secure_delete_request(connection)
            assert verify.metadata(connection).found == 0
    with closing(opened(folder)) as backend:
        assert found(backend.verify()) == {}
    database = Database(folder / "memory.sqlite3")
    with closing(database), database.reading() as connection:
        assert not meta.secure_delete_request(connection)  # the next opening has done it
