"""Stored rows are compared with their checksums whenever they are read."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, StoreDamaged
from agentformer.memory.backends.faiss.backend import DATABASE_FILE, FaissMemoryBackend
from agentformer.records import change_feed, meta
from agentformer.records import entries as records
from agentformer.records.codec import CHECKED, COLUMNS, COUNTED, now, to_row
from agentformer.records.entries import versions_of
from agentformer.records.integrity import checksums as crc
from agentformer.records.integrity.verify import DamagedRow, readable_rows
from agentformer.records.sqlite.database import Database
from agentformer.search.row_cache import RankedRows
from agentformer.testing import make_entry
from agentformer.types import Link, MemoryEntry, Query, Scope, Source, Use
from tests.records import damaged_rows

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / DATABASE_FILE)
    yield database
    database.close()


def entry(content: str = "a numbat", **fields: Any) -> MemoryEntry:
    return make_entry(content, created_at=now(), updated_at=now(), **fields)


def store(database: Database, *entries: MemoryEntry) -> list[int]:
    with database.writing() as connection:
        return records.insert(connection, entries)


def change(database: Database, statement: str, *values: Any) -> None:
    """Change the file as damage on the disk would, without the code under test."""
    raw = sqlite3.connect(database.path, isolation_level=None)
    raw.execute(statement, values)
    raw.close()


def test_every_column_is_in_the_checksum_or_changed_in_place(database: Database) -> None:
    with database.reading() as connection:
        columns = [row["name"] for row in connection.execute("PRAGMA table_info (entries)")]
    assert sorted([*CHECKED, *COUNTED, "checksum", "num"]) == sorted(columns)
    assert sorted([*CHECKED, *COUNTED, "checksum"]) == sorted(COLUMNS)


def test_checksums_equal_those_of_the_first_version() -> None:
    """Stored checksums of older versions must stay valid."""
    full = MemoryEntry(
        **{"id": "01", "content": "näin", "title": "t", "metadata": {"a": [1, None]}, "salience": 0.5, "version": 3},
        source=Source("d", "n", 4, "iv", 5, 9),
        derived_from=(Link("02"),),
        created_at=AT,
        updated_at=AT,
    )
    assert to_row(full)["checksum"] == 4019972997
    assert to_row(dataclasses.replace(full, source=None))["checksum"] == 3668126450
    assert crc.of_text("text", 7, 1) == 1290126762
    assert crc.of_vectors(np.arange(4, dtype="<f4").tobytes(), 1) == [-2751838212497342464]
    assert crc.of_vectors(np.arange(6, dtype="<f4").tobytes(), 2) == [-7845325397519499264, -7334173366248538112]


def test_every_flipped_bit_and_swap_changes_the_checksum_of_a_vector() -> None:
    for dimension in [1, 2, 7, 384]:
        chance = np.random.default_rng(dimension)
        rows = chance.standard_normal((3, dimension)).astype("<f4")
        sums = crc.of_vectors(rows.tobytes(), 3)
        assert sums == [crc.of_vectors(row.tobytes(), 1)[0] for row in rows]
        data = rows[1].tobytes()
        bits = range(8 * len(data)) if dimension < 10 else chance.integers(0, 8 * len(data), 2_000)
        for bit in bits:
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << (bit % 8)
            assert crc.of_vectors(changed, 1) != [sums[1]]
            changed[(bit // 8 + 4) % len(data)] ^= 1 << (bit % 8)  # the same bit of the next number
            assert dimension == 1 or crc.of_vectors(changed, 1) != [sums[1]]
        if dimension > 1:
            assert crc.of_vectors(np.roll(rows[1], 1).tobytes(), 1) != [sums[1]]


def test_an_entry_with_a_damaged_id_has_no_name() -> None:
    for stored, name in [("x", "entry x"), ("", "an entry"), ("a\nb", "an entry"), (None, "an entry"), (5, "an entry")]:
        assert crc.entry_name(stored) == name
    assert [len(crc.entry_name("x" * size)) for size in (200, 201)] == [206, 8]


def test_an_appended_null_column_does_not_change_a_checksum() -> None:
    assert crc.of_values(["a", None, 1]) == crc.of_values(["a", None, 1, None, None])
    assert crc.of_values(["a", None, 1]) != crc.of_values(["a", None, 1, "b"])


def test_a_changed_value_raises_store_damaged(database: Database) -> None:
    (num,) = store(database, entry(source=Source("d", "n", 1, "i", 0, 8), occurred_at=AT))
    with database.reading() as connection:
        row = connection.execute("SELECT * FROM entries").fetchone()
    for column in CHECKED:
        other = row[column] + 1 if isinstance(row[column], (int, float)) else f"{row[column] or ''}x"
        other = '{"x": 1}' if column == "metadata" else other  # the index of its keys requires JSON
        change(database, f"UPDATE entries SET {column} = ?", other)
        with pytest.raises(StoreDamaged, match="agentformer doctor --repair"), database.reading() as connection:
            records.by_num(connection, [num])
        with database.reading() as connection:
            (damaged,) = damaged_rows.damaged_entries(connection)
        name = f"{row['id']}x" if column == "id" else row["id"]
        assert (damaged.num, damaged.last, f"entry {name} is damaged" in damaged.why) == (num, num, True), column
        change(database, f"UPDATE entries SET {column} = ?", row[column])
    with database.reading() as connection:
        assert [*damaged_rows.damaged_entries(connection)] == []


def test_an_undecodable_row_without_a_checksum_raises_store_damaged(database: Database) -> None:
    (num,) = store(database, entry())
    with database.reading() as connection:
        row = connection.execute("SELECT * FROM entries").fetchone()
    damages: list[tuple[str, object]] = [
        ("metadata", "[1]"),
        ("derived_from", "["),
        ("derived_from", b"\xff"),
        ("derived_from", "[5]"),
        ("derived_from", "[" * 100_000),
        ("derived_from", '[["a", "b", "c"]]'),
        ("created_at", 2**62),
        ("created_at", "yesterday"),
        ("content", b"bytes"),
        ("title", b"bytes"),
    ]
    for column, value in damages:
        change(database, f"UPDATE entries SET checksum = NULL, {column} = ?", value)
        with pytest.raises(StoreDamaged, match="cannot be decoded"), database.reading() as connection:
            records.by_num(connection, [num])
        with database.reading() as connection:
            assert [damaged.num for damaged in damaged_rows.damaged_entries(connection)] == [num], column
        change(database, f"UPDATE entries SET {column} = ?", row[column])


@pytest.mark.parametrize("checksum", ["checksum", "NULL"])
def test_text_that_is_not_utf8_raises_store_damaged_without_quoting_it(database: Database, checksum: str) -> None:
    (num,) = store(database, entry("a secret"))
    change(database, f"UPDATE entries SET checksum = {checksum}, content = CAST(x'736563726574ff' AS TEXT)")
    with pytest.raises(StoreDamaged, match="UTF-8") as told, database.reading() as connection:
        records.by_num(connection, [num])
    assert "secret" not in str(told.value)
    with database.reading() as connection:
        assert [row.num for row in damaged_rows.damaged_entries(connection)] == [num]


def test_a_row_without_a_checksum_gets_one_when_it_changes(database: Database) -> None:
    old = entry("of old")
    store(database, old)
    change(database, "UPDATE entries SET checksum = NULL")
    with database.writing() as connection:
        assert records.get(connection, [old.id]) == [old]
        records.replace(connection, dataclasses.replace(old, content="of now", version=2))
        assert [*damaged_rows.damaged_entries(connection), *damaged_rows.damaged_history(connection)] == []
    change(database, "UPDATE entries SET content = 'of noon'")
    with pytest.raises(StoreDamaged, match=old.id), database.reading() as connection:
        records.get(connection, [old.id])


def test_counts_and_archiving_do_not_break_checksums(tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    one, other = backend.store([entry("one"), entry("other")])
    backend.store([entry("one")], unique=True)
    backend.touch([Use(one.id, AT, matches=2, reads=1)])
    summary = backend.consolidate(entry("both", kind="summary"), [one.id, other.id])
    assert [found.archived_by for found in backend.get([one.id, other.id])] == [summary.id] * 2
    backend.restore(summary.id)
    assert [(found.repeat_count, found.archived_by) for found in backend.get([one.id])] == [(1, None)]
    backend.close()


class Word(StrEnum):
    FACT = "fact"


class Sentence(str):
    def __str__(self) -> str:
        return "another one"


def test_values_that_sqlite_converts_do_not_break_checksums(database: Database) -> None:
    """SQLite converts by the type of the column, and returns plain Python types."""
    odd: dict[str, Any] = {"kind": Word.FACT, "title": 5, "salience": 1, "context": Sentence("said"), "speaker": True}
    given = entry(**odd, version=True, source=Source("d", "n", 2.0, 3.5, -0.0, 0))  # type: ignore[arg-type]
    (num,) = store(database, given)
    with database.reading() as connection:
        found = records.by_num(connection, [num])[num]
    assert (found.kind, found.title, found.context, found.speaker, found.version) == ("fact", "5", "said", "1", 1)
    assert found.source == Source("d", "n", 2, "3.5", 0, 0)
    assert repr(found.salience) == "1.0"


def test_a_changed_former_version_raises_store_damaged(database: Database) -> None:
    kept, other = entry("a"), entry("b")
    nums = store(database, kept, other)
    with database.writing() as connection:
        for each in (kept, other):
            records.replace(connection, dataclasses.replace(each, content="now", version=2))
        assert versions_of(connection, kept.id) == [kept]
    damages = [
        ("UPDATE history SET state = replace(state, '\"a\"', '\"ä\"') WHERE entry = ?", nums[0]),
        ("UPDATE history SET checksum = NULL, state = '[' WHERE entry = ?", nums[0]),
        ("UPDATE history SET version = 9 WHERE entry = ?", nums[0]),
        (f"UPDATE history SET entry = {nums[0]}, version = 2, checksum = NULL WHERE entry = ?", nums[1]),
    ]
    path = Path(f"{database.path}.sound")
    with database.reading() as connection:
        connection.execute("ROLLBACK")
        connection.execute("VACUUM INTO ?", [str(path)])
    for n, (statement, num) in enumerate(damages):
        copy = path.with_name(f"{n}.sqlite3")
        copy.write_bytes(path.read_bytes())
        damaged = Database(copy)
        change(damaged, statement, num)
        with pytest.raises(StoreDamaged, match=f"former version of entry {kept.id}"), damaged.reading() as connection:
            versions_of(connection, kept.id)
        with damaged.reading() as connection:
            assert [row.num for row in damaged_rows.damaged_history(connection)] == [nums[0]]
        damaged.close()


def embedded(tmp_path: Path, *contents: str) -> FaissMemoryBackend:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    backend.store([entry(content) for content in contents])
    return backend


def damage_vector(backend: FaissMemoryBackend, number: int, data: object) -> None:
    change(backend._database, "UPDATE vectors SET data = ? WHERE id = ?", data, number)


def forget_rows(backend: FaissMemoryBackend) -> None:
    """Drop the rows that searches keep in memory, so that the next search reads them from the disk."""
    backend._open().pipeline._rows = RankedRows()


@pytest.mark.parametrize("kind", ["bit", "shorter", "text", "null"])
@pytest.mark.parametrize("when", ["built", "ranked"])
def test_a_damaged_vector_is_not_used_and_words_answer(tmp_path: Path, kind: str, when: str) -> None:
    """Both when the index is built from the records and when its candidates are ranked."""
    backend = embedded(tmp_path, "a numbat sleeps", "a quokka jumps", "a numbat jumps")
    if when == "ranked":
        assert len(backend.search(Query("numbat", mode="dense"))) == 3
        forget_rows(backend)
    with backend._database.reading() as connection:
        data = connection.execute("SELECT data FROM vectors WHERE id = 2").fetchone()[0]
    damages: dict[str, object] = {"bit": bytes([data[0] ^ 1]) + data[1:], "shorter": data[:-4], "text": "x" * len(data)}
    damage_vector(backend, 2, damages.get(kind, 5))
    with pytest.raises(StoreDamaged, match="vector 2 is damaged"):
        backend.search(Query("numbat", mode="dense"))
    hits = backend.search(Query("numbat"))
    assert sorted(hit.entry.content for hit in hits) == ["a numbat jumps", "a numbat sleeps"]
    assert all(hit.dense_score is None and hit.lexical_score for hit in hits)
    assert (
        len(hits.warnings) == 1
        and "only words were searched" in hits.warnings[0]
        and "the vector 2 is damaged" in hits.warnings[0]
    )
    with backend._database.reading() as connection:
        assert [row.num for row in damaged_rows.damaged_vectors(connection)] == [2]
    backend.close()


def test_an_error_after_the_commit_does_not_fail_store(tmp_path: Path) -> None:
    """A caller takes an error for a failed store. Here the embedding queue cannot be read after the commit."""
    backend = embedded(tmp_path, "a numbat")
    backend.close()
    raw = sqlite3.connect(tmp_path / DATABASE_FILE)
    root = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'pending_by_refusal'").fetchone()[0]
    raw.close()
    data = bytearray((tmp_path / DATABASE_FILE).read_bytes())
    data[(root - 1) * 4096 : root * 4096] = bytes(4096)
    (tmp_path / DATABASE_FILE).write_bytes(data)
    again = FaissMemoryBackend(tmp_path, HashingEmbedder())
    with pytest.raises(StoreDamaged):
        again.embed_pending()
    stored = again.store([entry("a quokka")])
    assert again.get([stored[0].id]) == stored
    again.close()


def test_vectors_without_checksums_are_used(tmp_path: Path) -> None:
    backend = embedded(tmp_path, "a numbat", "a quokka", "a bilby")
    change(backend._database, "UPDATE vectors SET checksum = NULL WHERE id = 2")
    assert len(backend.search(Query("quokka", mode="dense"))) == 3
    forget_rows(backend)
    damage_vector(backend, 3, b"\0" * 1024)
    with pytest.raises(StoreDamaged, match="vector 3"):
        backend.search(Query("quokka", mode="dense"))
    backend.close()


def test_a_damaged_window_gives_no_span(tmp_path: Path) -> None:
    backend = embedded(tmp_path, "a numbat sleeps all day")
    assert backend.search(Query("numbat", mode="dense"))[0].span == (0, 23)
    forget_rows(backend)
    change(backend._database, "UPDATE windows SET span_start = 2")
    with pytest.raises(StoreDamaged, match="the window 1"):
        backend.search(Query("numbat", mode="dense"))
    hits = backend.search(Query("numbat"))
    assert hits[0].span is None and "only words" in hits.warnings[0]
    with backend._database.reading() as connection:
        assert [row.num for row in damaged_rows.damaged_windows(connection)] == [1]
    backend.close()


def test_a_search_that_finds_a_damaged_entry_raises_store_damaged(tmp_path: Path) -> None:
    backend = embedded(tmp_path, "a numbat sleeps", "a quokka jumps")
    assert len(backend.search(Query("numbat", mode="lexical"))) == 1
    change(backend._database, "UPDATE entries SET content = 'a numbat weeps' WHERE num = 1")
    for mode in ("lexical", "dense", "hybrid"):
        with pytest.raises(StoreDamaged, match="is damaged: its checksum differs"):
            backend.search(Query("numbat", mode=mode))  # type: ignore[arg-type]
    assert [hit.entry.content for hit in backend.search(Query("quokka", mode="lexical"))] == ["a quokka jumps"]
    backend.close()


def test_an_entry_of_another_namespace_is_never_found(tmp_path: Path) -> None:
    """An index with a wrong row must not lead out of the scope."""
    backend = embedded(tmp_path, "a numbat sleeps")
    other = backend.store([entry("a numbat jumps", namespace="other")])[0]
    wanted = Query("numbat", scope=Scope("other"), mode="lexical")
    assert len(backend.search(wanted)) == 1
    changed = to_row(dataclasses.replace(backend.get([other.id])[0], namespace="secret"))
    change(
        backend._database,
        "UPDATE entries SET namespace = 'secret', checksum = ? WHERE id = ?",
        changed["checksum"],
        other.id,
    )
    with pytest.raises(StoreDamaged, match="another namespace"):
        backend.search(wanted)
    backend.close()


def test_a_damaged_description_of_a_space_raises_store_damaged(tmp_path: Path) -> None:
    backend = embedded(tmp_path, "a numbat")
    change(backend._database, "UPDATE spaces SET description = replace(description, 'hashing', 'hashinh')")
    for call in (lambda: backend.search(Query("numbat")), lambda: backend.store([entry("b")]), backend.spaces):
        with pytest.raises(StoreDamaged, match="description of an embedding space"):
            call()
    with backend._database.reading() as connection:
        assert [row.table for row in damaged_rows.damaged_metadata(connection)] == ["spaces"]
    backend.close()


def test_a_store_without_its_id_is_not_opened(database: Database) -> None:
    change(database, "UPDATE meta SET value = 'x' WHERE key = 'store_id'")
    with pytest.raises(StoreDamaged, match="agentformer doctor"):
        Database(database.path)
    change(database, "DELETE FROM meta")
    with pytest.raises(StoreDamaged, match="its id is missing"):
        Database(database.path)


def test_a_metadata_value_is_stored_replaced_and_checked(database: Database) -> None:
    with database.writing() as connection:
        meta.set_value(connection, "a", "one")
        meta.set_value(connection, "a", "two")
        assert (meta.get_value(connection, "a"), meta.get_value(connection, "b")) == ("two", "")
    change(database, "UPDATE meta SET key = 'b' WHERE key = 'a'")
    with database.reading() as connection:
        assert [row.key for row in damaged_rows.damaged_metadata(connection)] == ["b"]
        with pytest.raises(StoreDamaged):
            meta.get_value(connection, "b")


def test_a_change_feed_with_a_wrong_end_raises_store_damaged(database: Database) -> None:
    """An index would wait for ever, and answer without later changes."""
    store(database, entry())
    change(database, "UPDATE points SET seq = 1000")
    with pytest.raises(StoreDamaged, match="change feed"), database.reading() as connection:
        change_feed.last_seq(connection)


def test_a_schema_that_is_not_utf8_raises_store_damaged(database: Database) -> None:
    """SQLite quotes the damaged name in its error, which cannot be decoded."""
    database.close()
    data = database.path.read_bytes()
    assert data.count(b"tableentriesentries") == 1
    database.path.write_bytes(data.replace(b"tableentriesentries", b"tableentr\xe5esXntries"))
    with pytest.raises(StoreDamaged, match="agentformer doctor"):
        Database(database.path)


def test_only_an_existing_id_raises_conflict(database: Database) -> None:
    (num,) = store(database, entry("a"))
    with pytest.raises(Conflict), database.writing() as connection:
        records.insert(connection, records.get(connection, [records.by_num(connection, [num])[num].id]))
    change(database, "CREATE UNIQUE INDEX made_up ON entries (namespace)")
    with pytest.raises(StoreDamaged, match="UNIQUE"):
        store(database, entry("b"))


def test_an_index_out_of_order_raises_store_damaged(database: Database) -> None:
    """A caller that reads a scope page by page would never end. The ids are swapped in the index only."""
    some = sorted((entry(f"{n}") for n in range(20)), key=lambda each: each.id)
    store(database, *some)
    change(database, "UPDATE entries SET checksum = NULL")  # or the wrong row would be told before
    with database.reading() as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries_by_id'").fetchone()[0]
    database.close()
    data = bytearray(database.path.read_bytes())
    index = bytes(data[(root - 1) * 4096 : root * 4096])
    one, other = some[3].id.encode(), some[12].id.encode()
    swapped = index.replace(one, b"?" * len(one)).replace(other, one).replace(b"?" * len(one), other)
    assert swapped != index
    data[(root - 1) * 4096 : root * 4096] = swapped
    database.path.write_bytes(data)
    again = Database(database.path)
    with pytest.raises(StoreDamaged, match="out of order"), again.reading() as connection:
        records.page(connection, Scope(), "", 100)
    again.close()


def pages_of(path: Path, holding: bytes) -> list[int]:
    data = path.read_bytes()
    return [at for at in range(0, len(data), 4096) if holding in data[at : at + 4096]]


@pytest.mark.parametrize("size", [500, 9_000])
def test_unreadable_rows_are_reported_as_a_range_and_the_others_are_checked(database: Database, size: int) -> None:
    """Both for a page of the tree and for an overflow page of a long text."""
    nums = store(database, *(entry(f"mark{n:03} " * (size // 8)) for n in range(60)))
    database.close()
    pages = pages_of(database.path, b"mark030 ")
    data = bytearray(database.path.read_bytes())
    data[pages[0] : pages[0] + 8] = b"\xff" * 8
    database.path.write_bytes(data)
    again = Database(database.path)
    change(again, "UPDATE entries SET title = 'x' WHERE num = 55")
    with again.reading() as connection:
        lost, changed = damaged_rows.damaged_entries(connection)
        readable = [
            row["num"] for row in readable_rows(connection, "entries", "num") if not isinstance(row, DamagedRow)
        ]
    again.close()
    assert "cannot be read" in lost.why and lost.num <= nums[30] <= lost.last < lost.num + 10
    assert readable == [num for num in nums if not lost.num <= num <= lost.last]
    assert changed.num == 55 and "checksum" in changed.why


def test_a_sound_store_has_no_damage(tmp_path: Path) -> None:
    backend = embedded(tmp_path, *(f"numbat {n} sleeps" for n in range(600)))
    backend.update(backend.list(Scope(), limit=1)[0].id, {"title": "x"})
    with backend._database.reading() as connection:
        assert [[*check(connection)] for check in damaged_rows.ALL] == [[], [], [], [], []]
        tables = ("entries", "history", "vectors", "windows", "spaces", "meta")
        unsealed = [f"SELECT count(*) FROM {table} WHERE checksum IS NULL" for table in tables]
        assert [connection.execute(query).fetchone()[0] for query in unsealed] == [0] * len(tables)
    backend.close()
