"""The SQLite file of the records: transactions, errors, and concurrent use."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, StoreDamaged, StoreError, StoreFull
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.codec import now
from agentformer.records.integrity.file_guard import GuardedConnection
from agentformer.records.sqlite.database import _MAX_IDLE, Database
from agentformer.records.sqlite.schema import MIGRATIONS
from agentformer.testing import make_entry
from agentformer.testing.case import run_in_threads
from agentformer.types import MemoryEntry, Query, Scope


def entry(content: str, **fields: object) -> MemoryEntry:
    return make_entry(content, created_at=now(), updated_at=now(), **fields)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "deep" / "folder" / "m.sqlite3")
    yield database
    database.close()


def contents(database: Database) -> list[str]:
    with database.reading() as connection:
        return [e.content for e in records.page(connection, Scope(), "", 100)]


class Interrupted(GuardedConnection):
    """Raises KeyboardInterrupt after the first BEGIN."""

    interrupted = False

    def execute(self, sql: str, *arguments: object) -> sqlite3.Cursor:
        cursor = super().execute(sql, *arguments)  # type: ignore[arg-type]
        if sql.startswith("BEGIN") and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return cursor


@pytest.mark.parametrize("use", ["reading", "writing"])
def test_an_interrupt_after_begin_leaves_no_open_transaction(database: Database, use: str) -> None:
    """Otherwise the pool would lend a connection with an open transaction."""
    with database.writing() as connection:
        records.insert(connection, [entry("a")])
    one = sqlite3.connect(database.path, factory=Interrupted, isolation_level=None, check_same_thread=False)
    one.row_factory = sqlite3.Row
    one.bind(database.path)
    database._idle[:] = [one]
    with pytest.raises(KeyboardInterrupt), getattr(database, use)():
        pass
    assert one.interrupted
    assert not one.in_transaction
    assert database._idle == [one]
    assert contents(database) == ["a"]


def test_a_connection_to_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    one = sqlite3.connect(":memory:", factory=GuardedConnection)
    with pytest.raises(StoreError, match=r"gone\.sqlite3 was removed, replaced or moved"):
        one.bind(tmp_path / "gone.sqlite3")


def test_an_error_rolls_the_transaction_back(database: Database) -> None:
    with pytest.raises(KeyError), database.writing() as connection:
        records.insert(connection, [entry("a"), entry("b")])
        raise KeyError
    assert contents(database) == []
    with database.writing() as connection:
        records.insert(connection, [entry("c")])
    assert contents(database) == ["c"]


def test_a_reader_sees_one_state(database: Database) -> None:
    with database.reading() as reader:
        assert records.count(reader, Scope()) == 0
        with database.writing() as writer:
            records.insert(writer, [entry("a")])
        assert records.count(reader, Scope()) == 0
    assert contents(database) == ["a"]


def test_many_threads_write_without_losing_anything(database: Database) -> None:
    def write(n: int) -> None:
        for i in range(10):
            with database.writing() as connection:
                records.insert(connection, [entry(f"{n} {i}")])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        assert records.count(connection, Scope()) == 120
        assert len(change_feed.entries_since(connection, 0)) == 120


def test_connections_use_wal_full_sync_and_foreign_keys(database: Database) -> None:
    with database.reading() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
        assert connection.execute("PRAGMA foreign_keys").fetchone()[0] == 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_files_of_closed_connections_are_used_again(database: Database) -> None:
    """SQLite closes a database file only with the last connection, because this releases all locks of the process."""

    def held() -> list[int]:
        names = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [names.count(f"{database.path}{end}") for end in ("", "-wal", "-shm")]

    def use(barrier: threading.Barrier) -> None:
        with database.reading() as connection:
            connection.execute("SELECT count(*) FROM entries").fetchone()
            barrier.wait(30)

    assert held() == [1, 1, 1]
    for count, files in ((4, 4), (12, 12), (12, 12), (9, 12), (15, 15)):
        barrier = threading.Barrier(count)
        run_in_threads(count, lambda _, barrier=barrier: use(barrier))
        assert held() == [files, min(files, _MAX_IDLE), 1]
    database.close()
    assert held() == [0, 0, 0]


def test_a_closed_database_raises_store_error(database: Database) -> None:
    database.close()
    database.close()
    with pytest.raises(StoreError, match="closed"):
        contents(database)


def test_a_file_that_is_not_a_database_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite3"
    path.write_bytes(b"this is not a database at all " * 100)
    with pytest.raises(StoreDamaged, match=r"m\.sqlite3"):
        Database(path)
    assert path.read_bytes() == b"this is not a database at all " * 100


def test_a_torn_database_is_reported_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite3"
    database = Database(path)
    with database.writing() as connection:
        records.insert(connection, [entry("x" * 500) for _ in range(500)])
    database.close()
    data = path.read_bytes()
    path.write_bytes(data[:8192] + b"\xa5" * (len(data) - 8192))
    with pytest.raises(StoreDamaged):
        torn = Database(path)
        contents(torn)


def test_a_folder_that_cannot_be_created_raises_store_full(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFull, match="file"):
        Database(tmp_path / "file" / "m.sqlite3")


def test_a_full_disk_raises_store_full_and_stores_nothing(database: Database) -> None:
    with database.writing() as connection:
        records.insert(connection, [entry("a")])
    with database.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    with pytest.raises(StoreFull, match="free some disk space"), database.writing() as connection:
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        records.insert(connection, [entry("x" * 10_000) for _ in range(20)])
    assert contents(database) == ["a"]


def test_a_store_of_a_newer_version_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite3"
    Database(path).close()
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer version"):
        Database(path)
    assert path.read_bytes() == before


def test_a_store_keeps_its_id(tmp_path: Path) -> None:
    one, other = Database(tmp_path / "a.sqlite3"), Database(tmp_path / "b.sqlite3")
    again = Database(tmp_path / "a.sqlite3")
    assert one.store_id == again.store_id != other.store_id
    for database in (one, other, again):
        database.close()


def test_concurrent_openers_of_a_new_store_agree_on_its_id(tmp_path: Path) -> None:
    for attempt in range(8):
        opened: list[Database] = []
        start = threading.Barrier(12)

        def run(path: Path, start: threading.Barrier, opened: list[Database]) -> None:
            start.wait()
            opened.append(Database(path))

        arguments = (tmp_path / f"{attempt}.sqlite3", start, opened)
        threads = [threading.Thread(target=run, args=arguments) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(opened) == 12
        assert len({database.store_id for database in opened}) == 1
        for database in opened:
            database.close()


def test_the_change_feed_has_each_entry_once_at_its_last_change(database: Database) -> None:
    with database.writing() as connection:
        a, b, c = records.insert(connection, [entry("a"), entry("b"), entry("c")])
        assert change_feed.entries_since(connection, 0) == [a, b, c]
        seen = change_feed.last_seq(connection)
        change_feed.append(connection, [a])
        assert change_feed.entries_since(connection, seen) == [a]
        assert change_feed.entries_since(connection, 0) == [b, c, a]
        seen = change_feed.last_seq(connection)
        assert records.remove(connection, [c]) == 1
        assert change_feed.entries_since(connection, seen) == [c]
        assert change_feed.last_seq(connection) == seen + 1


def test_the_number_of_a_removed_entry_is_not_used_again(database: Database) -> None:
    with database.writing() as connection:
        (old,) = records.insert(connection, [entry("a")])
        records.remove(connection, [old])
        (new,) = records.insert(connection, [entry("b")])
    assert new > old


def test_an_existing_id_raises_conflict(database: Database) -> None:
    a = entry("a")
    with database.writing() as connection:
        records.insert(connection, [a])
    with pytest.raises(Conflict, match=a.id), database.writing() as connection:
        records.insert(connection, [entry("b"), a])
    assert contents(database) == ["a"]


def test_a_file_in_use_by_another_thread_cannot_be_replaced(database: Database) -> None:
    """File locks do not show other uses in the same process."""
    with database.writing() as connection:
        records.insert(connection, [entry("a")])
        with pytest.raises(StoreError, match="is used by another thread of this process"), database.replacing():
            raise AssertionError
    assert contents(database) == ["a"]
    with database.replacing(), pytest.raises(StoreError, match="is being repaired"):
        contents(database)
    assert contents(database) == ["a"]


def test_a_file_open_twice_in_this_process_cannot_be_replaced(database: Database) -> None:
    other = Database(database.path)
    with pytest.raises(StoreError, match="is used by another thread of this process"), database.replacing():
        raise AssertionError
    other.close()
    with database.replacing(), pytest.raises(StoreError, match="is being repaired"):
        Database(database.path)
    assert contents(database) == []


def test_a_database_behind_a_symbolic_link_can_be_written(tmp_path: Path) -> None:
    """SQLite keeps the log beside the file and not beside the link."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "m.sqlite3"
    link.symlink_to(tmp_path / "real" / "m.sqlite3")
    for content in ("a", "b"):
        database = Database(link)
        for each in (content, content * 2):
            with database.writing() as connection:
                records.insert(connection, [entry(each)])
        database.close()
    database = Database(tmp_path / "real" / "m.sqlite3")
    assert sorted(contents(database)) == ["a", "aa", "b", "bb"]
    database.close()
    assert link.is_symlink()


def test_a_change_of_the_working_folder_does_not_move_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    backend = FaissMemoryBackend(Path("i"), HashingEmbedder(64))
    backend.store([entry("a heron")])
    monkeypatch.chdir(tmp_path / "there")
    backend.store([entry("a heron again")])
    assert len(backend.search(Query("heron"))) == 2
    backend.close()
    assert [each.name for each in tmp_path.rglob("*.sqlite3")] == ["memory.sqlite3"]
    assert not list((tmp_path / "there").iterdir())
