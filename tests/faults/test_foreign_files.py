"""What is not ours in the place of a file of ours: it is told, nothing waits for it, its bytes stay as they are. What
follows from the records is made anew."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from mounts import ALL
from test_vanished import LANTERNS, facts, never, opened

from agentformer.access.keys import KeyStore
from agentformer.errors import StoreDamaged, StoreError
from agentformer.jobs.queue import Jobs
from agentformer.records.sqlite.database import Database
from tests import forked

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with a name")


def another_application(path: Path, version: int = 0) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (place TEXT)")
        connection.execute("INSERT INTO bookmarks VALUES ('moz://places')")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()


def newer(path: Path) -> None:
    Database(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")


def bound_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket may not be long
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


PLACED: dict[str, tuple[Callable[[Path], object], str]] = {
    "random bytes": (lambda path: path.write_bytes(random.Random(1).randbytes(20_000)), "is damaged"),
    "a text": (lambda path: path.write_text("Dear diary, " * 999), "is damaged"),
    "another application": (another_application, "of another application"),
    "another application with a version": (lambda path: another_application(path, 3), "of another application"),
    "a newer version": (newer, "newer version"),
    "a folder": (lambda path: path.mkdir(), "is not a regular file"),
    "a pipe": (os.mkfifo, "is not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "a socket": (bound_socket, "is not a regular file"),
    "a circle of links": (lambda path: path.symlink_to(path.name), "cannot be used"),
}


@pytest.mark.parametrize("what", PLACED)
def test_what_is_no_store_of_ours_is_told_and_left_as_it_is(tmp_path: Path, what: str) -> None:
    place, words = PLACED[what]
    (tmp_path / "i").mkdir()
    records = tmp_path / "i" / "memory.sqlite3"
    place(records)
    before = records.read_bytes() if records.is_file() else None
    for _ in range(2):
        with pytest.raises(StoreError, match=words) as told:
            opened(tmp_path)
        assert str(records) in str(told.value) or what == "a newer version"
    assert (records.read_bytes() if records.is_file() else None) == before
    assert [path.name for path in (tmp_path / "i").iterdir()] == ["memory.sqlite3"]


@pytest.mark.parametrize("what", ["random bytes", "another application", "a folder", "a pipe"])
def test_the_file_of_the_jobs_is_looked_at_as_closely(tmp_path: Path, what: str) -> None:
    place, words = PLACED[what]
    place(tmp_path / "jobs.sqlite")
    jobs = Jobs(tmp_path, tmp_path / "u", never, most=10, days=1)
    with pytest.raises(StoreError, match=words):
        jobs.page([])
    jobs.close()


@pytest.mark.parametrize("what", ["a folder", "a pipe", "a circle of links", "random bytes"])
def test_what_is_no_file_of_keys_lets_nobody_in(tmp_path: Path, what: str) -> None:
    PLACED[what][0](tmp_path / "keys.json")
    with pytest.raises(StoreError, match="all requests are refused"):
        KeyStore(tmp_path).grant_of("af_x")


@pytest.mark.parametrize("how", ["emptied", "deleted"])
def test_records_that_are_gone_are_not_begun_anew_beside_their_indexes(tmp_path: Path, how: str) -> None:
    with opened(tmp_path) as af:
        af.memory.store_many(LANTERNS)
        assert af.memory.search("heron")
    records = tmp_path / "i" / "memory.sqlite3"
    records.rename(tmp_path / "kept")
    if how == "emptied":
        records.touch()
    with pytest.raises(StoreDamaged, match="restore the records from a backup"):
        opened(tmp_path)
    assert not records.exists() or not records.stat().st_size
    (tmp_path / "kept").replace(records)
    with opened(tmp_path) as af:
        assert facts(af) == LANTERNS


KILLED = """
import os, signal, sys, agentformer
folder, count = sys.argv[1:]
af = agentformer.connect(index_dir=f"{folder}/i", upload_dir=f"{folder}/u", embedder="hashing:64", cleanup_interval=0)
af.memory.store_many(f"seal {n}" for n in range(int(count)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_writer(folder: Path, count: int) -> None:
    """A store whose last writes are in its log alone."""
    forked.ended(forked.program(KILLED, folder, count))


@pytest.mark.parametrize("begun", ["new", "old"])
def test_the_log_of_another_store_is_not_taken_for_ours(tmp_path: Path, begun: str) -> None:
    with opened(tmp_path / "mine") as af:
        af.memory.store_many(LANTERNS)
    if begun == "old":
        with opened(tmp_path / "other") as af:
            af.memory.store_many(f"otter {n}" for n in range(40))
    killed_writer(tmp_path / "other", 40)
    mine = tmp_path / "mine" / "i" / "memory.sqlite3"
    before = mine.read_bytes()
    foreign = tmp_path / "other" / "i" / "memory.sqlite3-wal"
    assert foreign.stat().st_size
    shutil.copy(foreign, f"{mine}-wal")
    for _ in range(2):
        with pytest.raises(StoreError, match="does not belong to"):
            opened(tmp_path / "mine")
        assert mine.read_bytes() == before
    for left in ("-wal", "-shm"):
        Path(f"{mine}{left}").unlink(missing_ok=True)
    with opened(tmp_path / "mine") as af:
        assert facts(af) == LANTERNS
    with opened(tmp_path / "other") as af:
        assert len(facts(af)) == (80 if begun == "old" else 40)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 0x80
    path.write_bytes(data)


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def placed(path: Path) -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return placed


HARMS: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "flipped": flip,
    "deleted": lambda path: path.unlink(),
    "a folder": instead(lambda path: path.mkdir()),
    "a pipe": instead(os.mkfifo),
    "a circle of links": instead(lambda path: path.symlink_to(path.name)),
    "a link to nowhere": instead(lambda path: path.symlink_to("nowhere")),
    "a device": instead(lambda path: path.symlink_to("/dev/null")),
}
WHOLE = {
    "a file": instead(lambda path: path.touch()),
    **{name: HARMS[name] for name in ("a pipe", "a circle of links")},
}

NO_LOCK = ("a folder", "a circle of links", "a link to nowhere", "a device")  # links are not followed to a lock


def cases(folder: Path) -> list[tuple[str, str]]:
    """Names of files of the indexes, each with a harm; all of them, or a sample."""
    names = [
        "rag_faiss_index.bin",
        "rag_faiss_meta.json",
        *(f"words/{path.name}" for path in (folder / "words").iterdir()),
    ]
    every = [(name, harm) for name in sorted(names) for harm in HARMS] + [("words", harm) for harm in WHOLE]
    every += [(name, harm) for name in ("words.lock", "vectors.lock") for harm in HARMS if harm not in NO_LOCK]
    return (
        every
        if ALL
        else [
            *((f"words/{name}", "a pipe") for name in ("meta.json", ".managed.json")),
            *random.Random().sample(every, 6),
        ]
    )


def test_any_file_of_the_indexes_may_be_anything(tmp_path: Path) -> None:
    with opened(tmp_path / "whole") as af:
        kept = [entry.id for entry in af.memory.store_many(LANTERNS)]
        assert af.memory.search("heron")
    for name, harm in cases(tmp_path / "whole" / "i"):
        print(name, harm)
        folder = tmp_path / "harmed"
        shutil.copytree(tmp_path / "whole", folder)
        path = folder / "i" / name
        with suppress(FileNotFoundError):  # a lock that this system does not keep
            (WHOLE if name == "words" else HARMS)[harm](path)
        for _ in range(2):
            with opened(folder) as af:
                for mode in ("lexical", "dense", "hybrid"):
                    found = af.memory.search("heron lantern7", mode=mode, limit=50)
                    assert not found.warnings, (name, harm, mode, found.warnings)
                    assert "heron 7 stands by lantern7" in [hit.entry.content for hit in found], (name, harm, mode)
                assert [entry.id for entry in af.memory.list(limit=100)] == kept
        shutil.rmtree(folder)


def test_files_of_local_json_that_are_no_files_are_told_and_the_others_go_on(tmp_path: Path) -> None:
    with opened(tmp_path / "whole", "local_json") as af:
        af.memory.store_many(LANTERNS)
        af.memory.store("an egret", namespace="birds")
        assert af.backend.lease("a", "b", 60)
    for name in ("memory-birds.json", "sidecar-local_json.leases", "memory.lock"):
        for harm, spoil in HARMS.items():
            if (name == "memory.lock" and harm in NO_LOCK) or (
                name == "sidecar-local_json.leases" and harm == "a folder"
            ):
                continue  # "cannot be written" tells
            folder = tmp_path / "harmed"
            shutil.copytree(tmp_path / "whole", folder)
            path = folder / "i" / name
            with suppress(FileNotFoundError):
                spoil(path)
            with opened(folder, "local_json") as af:
                assert facts(af) == LANTERNS, (name, harm)
                af.memory.store("a curlew comes by curlewlantern")
                assert af.memory.search("curlewlantern"), (name, harm)
                assert af.backend.lease("other", "me", 60), (name, harm)
                if name == "memory-birds.json" and harm != "deleted":
                    with pytest.raises(StoreDamaged, match=r"memory-birds\.json"):
                        af.memory.list(namespace="birds")
                    with pytest.raises(StoreDamaged, match=r"memory-birds\.json"):
                        af.memory.store("a rail", namespace="birds")
            shutil.rmtree(folder)


@pytest.mark.parametrize("harm", ["torn", "foreign", "a pipe", "a folder"])
def test_a_journal_that_is_none_is_told_and_nothing_is_lost(tmp_path: Path, harm: str) -> None:
    with opened(tmp_path, "local_json") as af:
        af.memory.store_many(LANTERNS)
    journal = tmp_path / "i" / "memory.journal"
    if harm == "torn":
        journal.write_text('{"memory-default.js')
    elif harm == "foreign":
        journal.write_text(json.dumps({"../../etc/passwd": False}))
    else:
        PLACED[harm][0](journal)
    with pytest.raises(StoreError, match=r"memory\.journal|cannot be used"):
        opened(tmp_path, "local_json")
    journal.rmdir() if journal.is_dir() else journal.unlink()
    with opened(tmp_path, "local_json") as af:
        assert facts(af) == LANTERNS


def test_a_pipe_in_the_place_of_an_original_is_not_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        document = af.rag.upload(io.BytesIO(b"The keys hang in the blue cupboard."), name="keys.txt")
        (original,) = (tmp_path / "u").rglob("*.bin")
        instead(os.mkfifo)(original)
        with pytest.raises(StoreError, match="not a regular file"):
            af.rag.original(document.id)
