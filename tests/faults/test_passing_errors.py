"""Errors of the system that pass (too many open files, a failed read, too little memory) are neither damage nor a full
disk: nothing is deleted, replaced or quarantined because of them."""

from __future__ import annotations

import builtins
import errno
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, is_passing, store_failure
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.records.integrity import verify
from agentformer.records.integrity.file_guard import translate_errors
from agentformer.testing import make_entry
from agentformer.types import Query

pytestmark = pytest.mark.fault

NUMBERS = [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EINTR]


def opened(folder: Path) -> FaissMemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder(64))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(opened(tmp_path)) as backend:
        backend.store([make_entry(f"the heron number {number} stands") for number in range(40)])
        backend.search(Query("heron"))
    return tmp_path


def files(folder: Path) -> dict[str, int]:
    return {str(each.relative_to(folder)): each.stat().st_ino for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_passing_error_is_told_as_such(number: int) -> None:
    error = OSError(number, os.strerror(number))
    assert is_passing(error) and is_passing(ValueError(f"IO error: {os.strerror(number)} (os error {number})"))
    assert isinstance(store_failure("x cannot be written", error, "free some disk space"), StoreBusy)
    full = store_failure("x cannot be written", OSError(errno.ENOSPC, "No space left on device"), "free some")
    assert isinstance(full, StoreFull) and str(full) == "x cannot be written: No space left on device; free some"


def sqlite_error(code: int, text: str) -> sqlite3.DatabaseError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sqlite_error(266, "disk I/O error"), StoreBusy),  # a read
        (sqlite_error(778, "disk I/O error"), StoreFull),  # a write
        (sqlite_error(13, "database or disk is full"), StoreFull),
        (sqlite_error(14, "unable to open database file"), StoreFull),
        (sqlite_error(11, "database disk image is malformed"), StoreDamaged),
        (MemoryError(), StoreBusy),
    ],
)
def test_errors_of_sqlite_are_classified_by_their_code(error: Exception, kind: type[StoreError]) -> None:
    with pytest.raises(StoreError) as told, translate_errors(Path("m"), "restore"):
        raise error
    assert type(told.value) is kind


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of open files")
def test_a_database_that_cannot_be_opened_for_too_many_open_files_is_busy(tmp_path: Path) -> None:
    with exhausted(), pytest.raises(StoreBusy), translate_errors(tmp_path / "m", "restore"):
        sqlite3.connect(tmp_path / "m").execute("CREATE TABLE t (a)")


@contextmanager
def exhausted() -> Iterator[None]:
    """Open files until no more can be opened."""
    import resource

    former, handles = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 20, former[1])
    )
    try:
        while True:
            try:
                handles.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for handle in handles:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


def failing_reads(monkeypatch: pytest.MonkeyPatch, number: int, wanted: Callable[[str], bool]) -> None:
    real = builtins.open

    def failing(file: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, (str, os.PathLike)) and wanted(os.fspath(file)):
            raise OSError(number, os.strerror(number), str(file))
        return real(file, *arguments, **options)

    monkeypatch.setattr(builtins, "open", failing)
    monkeypatch.setattr("io.open", failing)


@pytest.mark.parametrize("number", NUMBERS)
def test_an_index_that_cannot_be_read_now_is_not_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with closing(opened(folder)) as backend:
        before = files(folder)
        failing_reads(monkeypatch, number, lambda name: "rag_faiss_index" in name)
        found = {check.name: check for check in backend.verify(repair=True) if check.found}
        monkeypatch.undo()
        assert list(found) == ["snapshot"] and found["snapshot"].mended == 0
        assert "cannot be read now" in found["snapshot"].findings[0] and "try again" in found["snapshot"].findings[0]
        after = files(folder)
        assert {name: after.get(name) for name in before if "faiss" in name} == {
            name: inode for name, inode in before.items() if "faiss" in name
        }
        assert [check for check in backend.verify() if check.found] == []


def test_pages_that_cannot_be_read_now_are_no_reason_to_replace_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = "Tree 4 page 17: unable to get the page. error code=266"
    monkeypatch.setattr(verify, "_sqlite_problems", lambda connection, findings: [problem])
    with closing(opened(folder)) as backend:
        before = files(folder)
        file = backend.verify(repair=True)[0]
        assert (file.name, file.found, file.mended) == ("database", 1, 0)
        assert files(folder).items() >= before.items() and not list(folder.glob("*damaged*"))


def test_rows_that_cannot_be_read_now_are_not_quarantined(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(connection: sqlite3.Connection, query: str, values: list[Any]) -> Any:
        raise sqlite_error(266, "disk I/O error")

    monkeypatch.setattr(verify, "read_page", failing)
    with closing(opened(folder)) as backend:
        before = files(folder)
        checks = {check.name: check for check in backend.verify(repair=True)}
        assert checks["entries"].found == 1 and checks["entries"].mended == 0
        assert files(folder).items() >= before.items() and not list(folder.glob("*damaged*"))
        monkeypatch.undo()
        assert sum(check.found for check in backend.verify()) == 0


@pytest.mark.parametrize("number", NUMBERS)
def test_a_recovery_that_cannot_read_the_file_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    from agentformer.memory.backends.faiss.verifier import salvage_folder
    from agentformer.records.integrity import cells

    def failing(self: cells.Pages, at: int, length: int) -> bytes:
        raise OSError(number, os.strerror(number))

    before = files(folder)
    monkeypatch.setattr(cells.Pages, "_read", failing)
    with pytest.raises(StoreBusy, match="cannot be repaired"):
        salvage_folder(folder)
    assert files(folder) == before
