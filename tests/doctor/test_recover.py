"""A repair of a database file puts a new one in its place, and costs nobody anything: not when it is killed, not who
opens the store meanwhile, not when it had better not have been asked for."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreDamaged, StoreError
from agentformer.memory.backends.faiss.backend import DATABASE_FILE, FaissMemoryBackend
from agentformer.records import entries as records
from agentformer.records.codec import now
from agentformer.records.integrity.recover import Recovered, recover_file
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import Scope
from tests import forked
from tests.faults.long_form import LONG

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals and file locks"),
]

IN_THE_FILE, IN_THE_LOG = "the heron stands", [f"the egret {n} comes by" for n in range(5)]
ALL = sorted([IN_THE_FILE, *IN_THE_LOG])
EVENTS, WRITTEN = ("os.rename", "os.remove", "os.chmod", "os.chown"), os.O_WRONLY | os.O_RDWR
# A recovery that waits just before the new file replaces the damaged one.
PAUSED = """
import sys; from pathlib import Path
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.integrity.recover import recover_file
path = Path(sys.argv[1])
def wait(event, arguments):
    if event == "os.rename" and Path(arguments[1]) == path:
        print("ready", flush=True); sys.stdin.readline()
sys.addaudithook(wait)
print(recover_file(path, Quarantine(path.parent)).entries, flush=True)
"""
OPENER = """
import sys; from pathlib import Path
from agentformer.records import entries; from agentformer.records.codec import now
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
print("opening", flush=True)
database = Database(Path(sys.argv[1]))
with database.writing() as connection:
    entries.insert(connection, [make_entry("acknowledged", created_at=now(), updated_at=now())])
print("written", flush=True); sys.stdin.readline()
database.close()
"""


def insert(database: Database, *contents: str) -> None:
    with database.writing() as connection:
        records.insert(connection, [make_entry(each, created_at=now(), updated_at=now()) for each in contents])


def contents(path: Path) -> list[str]:
    with closing(Database(path)) as database, database.reading() as connection:
        assert [row[0] for row in connection.execute("PRAGMA integrity_check")] == ["ok"]
        return sorted(entry.content for entry in records.page(connection, Scope(), "", 1000))


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def repaired(path: Path) -> Recovered:
    return recover_file(path, Quarantine(path.parent))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store as a killed writer leaves it: the last writes are in the log only."""
    (tmp_path / "i").mkdir()
    path = tmp_path / "i" / DATABASE_FILE
    with closing(Database(tmp_path / "begun" / DATABASE_FILE)) as database:
        insert(database, IN_THE_FILE)
        database.clear_log()
        for each in IN_THE_LOG:
            insert(database, each)
        shutil.copy(database.path, path)
        shutil.copy(log_of(database.path), log_of(path))
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if not each.name.endswith("-shm")}


def test_recovery_keeps_the_damaged_file_byte_for_byte(store: Path) -> None:
    before = files(store.parent)
    told = repaired(store)
    assert contents(store) == ALL and told.entries == len(ALL)
    assert told.kept_as.read_bytes() == before[store.name]
    assert log_of(told.kept_as).read_bytes() == before[log_of(store).name]
    assert sorted(files(store.parent)) == sorted([store.name, told.kept_as.name, log_of(told.kept_as).name])


def test_a_store_beside_a_stale_wal_is_not_repaired(store: Path, tmp_path: Path) -> None:
    """A backup was restored beside the old log."""
    backup = tmp_path / "backup.sqlite3"
    with closing(Database(backup)) as database:
        insert(database, "the kingfisher dives")
    shutil.copy(backup, store)
    before = files(store.parent)
    with pytest.raises(StoreError, match="does not belong to"):
        repaired(store)
    assert files(store.parent) == before
    log_of(store).unlink()
    assert contents(store) == ["the kingfisher dives"]


@pytest.mark.parametrize("log", [True, False])
def test_an_empty_file_is_not_replaced_by_a_new_store(store: Path, log: bool) -> None:
    os.truncate(store, 0)
    if not log:
        log_of(store).unlink()
    before = files(store.parent)
    with pytest.raises(StoreDamaged, match=r"nothing in memory\.sqlite3 can be read .*restore it from a backup"):
        repaired(store)
    assert files(store.parent) == before


def killed_at(point: int, work: Callable[[], object]) -> bool:
    """Run it in a process that is killed before its n-th change of a name, owner or mode, and in the long form also
    before it opens a file for writing; return False if it ended before."""
    pid = os.fork()
    if pid == 0:
        left = point

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITTEN
            if event in EVENTS or (LONG and (opens or event == "sqlite3.connect")):
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

        sys.addaudithook(count)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_a_kill_during_recovery_loses_no_acknowledged_write(store: Path, tmp_path: Path) -> None:
    interrupted, point = 0, 0
    while True:
        folder = tmp_path / str(point)
        shutil.copytree(store.parent, folder)
        path = folder / DATABASE_FILE
        killed = killed_at(point, lambda path=path: repaired(path))  # type: ignore[misc]
        try:
            assert contents(path) == ALL, point
        except StoreDamaged as error:
            assert "a repair was interrupted" in str(error), (point, error)
            interrupted += 1
        repaired(path)
        assert contents(path) == ALL, point
        with closing(Database(path)) as database:
            insert(database, "the kingfisher dives")
        assert contents(path) == sorted([*ALL, "the kingfisher dives"])
        for kept in folder.glob(f"{DATABASE_FILE}.damaged-*[0-9]"):
            assert set(contents(kept)) >= set(ALL), (point, kept)
        assert not [each.name for each in folder.iterdir() if each.name.startswith(".")]
        shutil.rmtree(folder)
        if not killed:
            break
        point += 1
    assert point > (15 if LONG else 3) and interrupted


def started(program: str, path: Path) -> Any:
    return forked.program(program, path, stdin=subprocess.PIPE)


def line_of(process: Any) -> str:
    return str(process.stdout.readline().strip())


def go_on(process: Any) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="which files a process has open is not told here")
def test_opening_during_a_recovery_gets_the_new_file(store: Path) -> None:
    with started(PAUSED, store) as repairing:
        assert line_of(repairing) == "ready"
        with started(OPENER, store) as opener:
            assert line_of(opener) == "opening"
            handles = Path(f"/proc/{opener.pid}/fd")
            while not any(str(each.readlink()) == str(store) for each in handles.iterdir() if each.is_symlink()):
                assert opener.poll() is None
            go_on(repairing)
            assert line_of(repairing) == str(len(ALL))
            assert line_of(opener) == "written"
            assert contents(store) == sorted([*ALL, "acknowledged"])
            go_on(opener)
    assert contents(store) == sorted([*ALL, "acknowledged"])


def test_a_second_recovery_does_not_disturb_the_first(store: Path) -> None:
    with started(PAUSED, store) as first:
        assert line_of(first) == "ready"
        before = files(store.parent)
        with pytest.raises(StoreError, match="open in another process"):
            repaired(store)
        assert files(store.parent) == before
        go_on(first)
        assert line_of(first) == str(len(ALL))
    assert contents(store) == ALL


def test_the_recovered_file_keeps_owner_and_mode(store: Path) -> None:
    store.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(store, 12345, 12346)
    before = store.stat()
    kept = repaired(store).kept_as
    for each in (store, kept, log_of(kept)):
        found = each.stat()
        assert (found.st_uid, found.st_gid) == (before.st_uid, before.st_gid)
        assert stat.S_IMODE(found.st_mode) == (0o640 if each == store else 0o600)


def test_recovery_keeps_a_symbolic_link(store: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite3"
    link.symlink_to(store)
    kept = repaired(link).kept_as
    assert link.is_symlink() and kept.parent == store.parent and contents(link) == contents(store) == ALL


def test_an_interrupted_check_repairs_nothing(tmp_path: Path) -> None:
    """An interrupted check of SQLite says nothing about the file."""
    with closing(FaissMemoryBackend(tmp_path, HashingEmbedder(64))) as backend:
        backend.store([make_entry(each) for each in ALL])
        checking: list[bool] = []
        (connection,) = backend._database._idle
        connection.set_trace_callback(lambda statement: checking.append(statement.startswith("PRAGMA integrity_check")))
        connection.set_progress_handler(lambda: checking[-1:] == [True], 1)
        before = (tmp_path / DATABASE_FILE).stat().st_ino
        check = backend.verify(repair=True)[0]
        connection.set_progress_handler(None, 0)
        assert any(checking) and (check.name, check.found, check.mended) == ("database", 1, 0)
        assert "interrupted" in check.findings[0] and "nothing more is repaired" in check.findings[0]
        assert (tmp_path / DATABASE_FILE).stat().st_ino == before and not list(tmp_path.glob("*damaged*"))
        assert [each for each in backend.verify() if each.found] == []
