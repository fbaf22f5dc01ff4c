"""The number of the schema: a process that another one has overtaken writes nothing, and a damaged number is mended."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentformer.errors import StoreDamaged, StoreError
from agentformer.factory import connect, salvage
from agentformer.jobs.store import JobStore
from agentformer.records.sqlite.schema import MIGRATIONS
from tests.jobs.helpers import task

NEWEST = len(MIGRATIONS)
LOWERED = sorted({NEWEST & ~(1 << bit) for bit in range(8)} - {NEWEST} | set(range(NEWEST)) | {-1, -(2**31) + NEWEST})


def set_number(path: Path, number: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {number}")


def test_a_process_that_was_opened_before_a_migration_writes_nothing(tmp_path: Path) -> None:
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        stored = af.memory.store("Aino prefers tea.")
        set_number(tmp_path / "i" / "memory.sqlite3", NEWEST + 1)
        for write in (
            lambda: af.memory.store("Aino prefers coffee."),
            lambda: af.memory.update(stored.id, content="Aino prefers milk."),
            lambda: af.memory.remove(stored.id),
            lambda: af.rag.upload(b"The quokka smiles.", name="quokka.txt"),
        ):
            with pytest.raises(StoreError, match="a newer version of agentformer wrote this store"):
                write()
        assert af.memory.get(stored.id).content == "Aino prefers tea."
        set_number(tmp_path / "i" / "memory.sqlite3", NEWEST)
        assert [entry.content for entry in af.memory.list()] == ["Aino prefers tea."]


def test_a_queue_of_jobs_that_a_newer_version_has_migrated_takes_no_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with closing(JobStore(path)) as store:
        store.add("one", task("a"), 9)
        set_number(path, 99)
        with pytest.raises(StoreError, match="a newer version of agentformer wrote"):
            store.add("two", task("b"), 9)
        set_number(path, 3)
        assert store.active() == ["one"]


@pytest.mark.parametrize("number", LOWERED)
def test_a_lowered_number_is_damage_that_a_repair_mends(tmp_path: Path, number: int) -> None:
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    with connect(**where) as af:
        stored = [af.memory.store(text).id for text in ("Aino prefers tea.", "The quokka smiles.")]
        document = af.rag.upload(b"The numbat sleeps in a log.", name="numbat.txt")
        settings = af.settings
    set_number(tmp_path / "i" / "memory.sqlite3", number)
    with pytest.raises(StoreDamaged, match=f"schema number {number}"):
        connect(**where)
    (recovered,) = salvage(settings)
    assert recovered.lost == ()
    with connect(**where) as af:
        assert [af.memory.get(each).content for each in stored] == ["Aino prefers tea.", "The quokka smiles."]
        assert af.rag.original(document.id) == b"The numbat sleeps in a log."
        assert sum(check.found for check in af.verify()) == 0
