"""Upgrades of a store with a copy of its former state, and vacuums."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

import agentformer
from agentformer.cli import main
from agentformer.errors import StoreDamaged, StoreFull
from agentformer.records.entries import trim_history
from agentformer.records.sqlite import database as database_module
from agentformer.records.sqlite import schema
from agentformer.records.sqlite.database import Database
from agentformer.testing.case import run_in_threads
from tests.records.test_migrations import _FIRST


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A database of schema 1, with one entry."""
    path = tmp_path / "memory.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema.MIGRATIONS[0] + _FIRST)
    return path


def schema_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def rows(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT id, content FROM entries").fetchall()


def test_an_upgrade_keeps_the_former_state(former: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = rows(former)
    with caplog.at_level(logging.WARNING, "agentformer"):
        Database(former).close()
    kept = former.with_name("memory.sqlite3.schema-1")
    assert schema_of(former) == len(schema.MIGRATIONS) and schema_of(kept) == 1
    assert rows(former) == rows(kept) == content
    assert f"had schema 1 of an older version, and has schema {len(schema.MIGRATIONS)} now" in caplog.text
    assert str(kept) in caplog.text and kept.stat().st_mode & 0o077 == 0
    caplog.clear()
    Database(former).close()
    assert not caplog.text, "the next opening has nothing to do"


def test_the_way_back_is_the_copy(former: Path) -> None:
    with closing(Database(former)) as database, database.writing() as connection:
        connection.execute("UPDATE entries SET content = 'changed by the newer version'")
    former.with_name("memory.sqlite3.schema-1").replace(former)
    assert (schema_of(former), rows(former)) == (1, [("e1", "the second text")])


def test_only_the_copy_of_the_last_upgrade_is_kept(former: Path) -> None:
    earlier = former.with_name("memory.sqlite3.schema-0")
    earlier.write_bytes(b"a copy of an earlier upgrade")
    Database(former).close()
    assert sorted(path.name for path in former.parent.glob("*.schema-*")) == ["memory.sqlite3.schema-1"]


def test_processes_that_upgrade_at_once_make_one_copy(former: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "agentformer"):
        run_in_threads(6, lambda _: Database(former).close())
    assert caplog.text.count("had schema 1") == 1
    assert schema_of(former.with_name("memory.sqlite3.schema-1")) == 1


def test_without_room_for_a_copy_nothing_changes(former: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(connection: sqlite3.Connection, path: Path, advice: str) -> None:
        path.write_bytes(b"half")
        raise StoreFull(f"no room; {advice}")

    monkeypatch.setattr(database_module, "write_copy", full)
    with pytest.raises(StoreFull, match="agentformer upgrade --without-copy"):
        Database(former)
    assert schema_of(former) == 1 and not list(former.parent.glob("*.schema-*"))
    told = CliRunner().invoke(main, ["upgrade", "--without-copy", "--index-dir", str(former.parent)])
    assert (told.exit_code, told.output) == (0, "the store has the schema of this version\n")
    assert schema_of(former) == len(schema.MIGRATIONS) and not list(former.parent.glob("*.schema-*"))


def test_a_damaged_store_is_not_upgraded(former: Path) -> None:
    with closing(sqlite3.connect(former)) as connection:  # an index that lacks a row
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET rootpage = 3 WHERE name = 'entries_by_parent'")
        connection.commit()
    with pytest.raises(StoreDamaged):
        Database(former)
    assert schema_of(former) == 1 and not list(former.parent.glob("*.schema-*"))


def test_a_new_store_and_one_of_this_schema_need_no_copy(tmp_path: Path) -> None:
    for _ in range(2):
        Database(tmp_path / "memory.sqlite3").close()
    assert not list(tmp_path.glob("*schema*")) and not list(tmp_path.glob("*.upgrade.lock"))


def test_a_vacuum_shrinks_the_file_beside_readers(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(embedder="hashing", **folders) as af:
        ids = [entry.id for entry in af.memory.store_many([f"fact {n} " + "x" * 2_000 for n in range(800)])]
        for entry_id in ids[:600]:
            af.memory.remove(entry_id)
        path = tmp_path / "i" / "memory.sqlite3"
        before = path.stat().st_size
        told = CliRunner().invoke(main, ["vacuum", "--index-dir", str(tmp_path / "i")])
        assert told.exit_code == 0 and "before, it had" in told.output, told.output
        assert path.stat().st_size < before / 2
        assert len(af.memory.list(limit=1_000)) == 200, "the memory that was open goes on"
        assert af.memory.search("fact 700", limit=1)[0].entry.id == ids[700]
        af.memory.store("after the vacuum")
        assert not any(check.found for check in af.verify())


def test_a_vacuum_beside_a_long_reader_says_what_the_log_still_takes(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    vacuum = ["vacuum", "--index-dir", str(tmp_path / "i")]
    with agentformer.connect(embedder="hashing", **folders) as af:
        af.memory.store_many([f"fact {n} " + "x" * 2_000 for n in range(100)])
        with af.events._database.reading() as connection:
            connection.execute("SELECT count(*) FROM entries").fetchone()
            told = CliRunner().invoke(main, vacuum)
            assert told.exit_code == 0 and "MB of it are the write-ahead log" in told.stderr, told.output
        assert "write-ahead log" not in CliRunner().invoke(main, vacuum).output


def test_old_versions_are_deleted_by_the_time_of_their_replacement(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(embedder="hashing", **folders) as af:
        entry = af.memory.store("one")
        other = af.memory.store("of today")
        af.memory.update(other.id, content="of now")
        for text in ("two", "three", "four"):
            af.memory.update(entry.id, content=text)
    day = timedelta(days=1)
    now = datetime.now(UTC)
    with closing(Database(tmp_path / "i" / "memory.sqlite3")) as database:
        with database.writing() as connection:  # "two" replaced "one" 9 days ago, "three" 5 days ago, "four" 2 days ago
            for version, age in ((2, 9), (3, 5)):
                connection.execute(
                    "UPDATE history SET state = json_set(state, '$.updated_at', ?) WHERE version = ? AND entry = 1",
                    [(now - age * day).isoformat(), version],
                )
            moment = int((now - 2 * day).timestamp() * 1e6)
            connection.execute("UPDATE entries SET updated_at = ? WHERE num = 1", [moment])

        def versions() -> list[int]:
            with database.reading() as connection:
                return [row[0] for row in connection.execute("SELECT version FROM history ORDER BY entry, version")]

        assert versions() == [1, 2, 3, 1]
        assert (trim_history(database, now - 10 * day), versions()) == (0, [1, 2, 3, 1])
        assert (trim_history(database, now - 6 * day), versions()) == (1, [2, 3, 1])
        assert (trim_history(database, now - 3 * day), versions()) == (1, [3, 1])
        assert (trim_history(database, now - day), versions()) == (1, [1])


@pytest.mark.parametrize("command", ["vacuum", "upgrade"])
def test_a_backend_without_a_database_has_nothing_to_do(tmp_path: Path, command: str) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(embedder="hashing", backend="local_json", **folders) as af:
        af.memory.store("a heron")
    told = CliRunner().invoke(
        main, [command, "--index-dir", str(tmp_path / "i")], env={"AGENTFORMER_BACKEND": "local_json"}
    )
    assert told.exit_code == 2 and "nothing to do" in told.output
