"""Files that go away under an open memory: nothing is written into what nobody can find again, nothing is answered from
it, and what was acknowledged is there when the files are."""

from __future__ import annotations

import io
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mounts import apart, mount, play, unmount, why_not

import agentformer
from agentformer.access.keys import KeyStore
from agentformer.errors import AgentFormerError, NotFound, StoreError
from agentformer.jobs.queue import Jobs
from agentformer.jobs.store import Task
from tests import forked

BACKENDS = ["faiss", "local_json"]
RECORDS = {"faiss": "memory.sqlite3", "local_json": "memory-default.json"}
LANTERNS = [f"heron {n} stands by lantern{n}" for n in range(30)]


def opened(folder: Path, backend: str = "faiss") -> agentformer.AgentFormer:
    return agentformer.connect(
        index_dir=folder / "i", upload_dir=folder / "u", backend=backend, embedder="hashing:64", cleanup_interval=0
    )


def facts(af: agentformer.AgentFormer) -> list[str]:
    return [entry.content for entry in af.memory.list(limit=1000, kinds=["fact"])]


def calls(af: agentformer.AgentFormer) -> list[Callable[[], Any]]:
    return [
        lambda: af.memory.store("an egret that must not be lost"),
        lambda: af.memory.search("heron"),
        lambda: af.memory.list(),
        lambda: af.memory.remove(af.memory.list(limit=1)[0].id),
        lambda: af.rag.upload(io.BytesIO(b"some words"), name="new.txt"),
        lambda: af.backend.lease("a", "b", 5),
        lambda: af.memory.reindex() if "sqlite" in str(af.backend) else af.memory.store("again"),
    ]


def check_refused(af: agentformer.AgentFormer, *words: str) -> None:
    for number, call in enumerate(calls(af)):
        try:
            call()
        except StoreError as error:
            assert any(word in str(error) for word in words), (number, error)
        else:
            raise AssertionError(f"call {number} was answered")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_folder_that_is_moved_away_is_missed_at_once_and_found_again(tmp_path: Path, backend: str) -> None:
    af = opened(tmp_path, backend)
    af.memory.store_many(LANTERNS)
    assert af.memory.search("heron")
    (tmp_path / "i").rename(tmp_path / "elsewhere")
    check_refused(af, "while it was open")
    assert not (tmp_path / "i").exists(), "a new folder stands in the place of the moved one"
    (tmp_path / "elsewhere").rename(tmp_path / "i")
    assert facts(af) == LANTERNS
    af.memory.store("an egret comes by egretlantern")
    assert af.memory.search("egretlantern")[0].entry.content == "an egret comes by egretlantern"
    (tmp_path / "i").rename(tmp_path / "elsewhere")
    af.close()
    assert not (tmp_path / "i").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "i")
    with opened(tmp_path, backend) as af:
        assert facts(af) == [*LANTERNS, "an egret comes by egretlantern"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_folder_that_is_deleted_is_missed_and_a_new_memory_begins_only_when_it_is_opened(
    tmp_path: Path, backend: str
) -> None:
    af = opened(tmp_path, backend)
    af.memory.store_many(LANTERNS)
    shutil.rmtree(tmp_path / "i")
    check_refused(af, "while it was open")
    af.close()
    assert not (tmp_path / "i").exists()
    with opened(tmp_path, backend) as af:
        assert facts(af) == []
        af.memory.store("a new beginning")


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_records_that_are_taken_away_are_not_written_on(tmp_path: Path, how: str) -> None:
    with opened(tmp_path / "other") as other:
        other.memory.store("a seal of another store")
    af = opened(tmp_path)
    af.memory.store_many(LANTERNS)
    if how == "deleted":
        (tmp_path / "i" / "memory.sqlite3").unlink()
    else:
        os.replace(tmp_path / "other" / "i" / "memory.sqlite3", tmp_path / "i" / "memory.sqlite3")
    check_refused(af, "while it was open")
    af.close()
    if how == "replaced":
        for left in ("memory.sqlite3-wal", "memory.sqlite3-shm"):  # of the store that was there, as a restore must
            (tmp_path / "i" / left).unlink(missing_ok=True)
        with opened(tmp_path) as af:
            assert facts(af) == ["a seal of another store"]
            assert [hit.entry.content for hit in af.memory.search("seal")] == ["a seal of another store"]


LOGLESS = """
import os, signal, sys
from pathlib import Path
import agentformer
from agentformer.errors import StoreError
folder = Path(sys.argv[1])
af = agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing:64", cleanup_interval=0)
af.memory.store_many(sys.argv[2:])
(folder / "i" / "memory.sqlite3-wal").unlink()
try:
    af.memory.store("an egret that must not be lost")
except StoreError as error:
    print(error, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_log_that_is_deleted_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Though its process is killed right after it has noticed."""
    done = forked.ended(forked.program(LOGLESS, tmp_path, *LANTERNS))
    assert done.returncode == -signal.SIGKILL
    assert "memory.sqlite3-wal was removed or replaced while it was open" in done.stdout
    with opened(tmp_path) as af:
        assert facts(af) == LANTERNS


@pytest.mark.parametrize("backend", BACKENDS)
def test_locks_snapshots_and_words_that_are_deleted_are_made_anew(tmp_path: Path, backend: str) -> None:
    with opened(tmp_path, backend) as af:
        af.memory.store_many(LANTERNS)
        assert af.memory.search("heron")
    af = opened(tmp_path, backend)
    assert af.memory.search("heron")
    for path in (tmp_path / "i").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith(RECORDS[backend]):
            path.unlink()
    af.memory.store("an egret comes by egretlantern")
    assert af.memory.search("egretlantern")[0].entry.content == "an egret comes by egretlantern"
    assert af.backend.lease("a", "b", 5)
    af.close()
    with opened(tmp_path, backend) as af:
        assert facts(af) == [*LANTERNS, "an egret comes by egretlantern"]
        assert len(af.memory.search("heron", limit=50)) >= 30


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_original_that_is_deleted_is_told_and_everything_else_goes_on(tmp_path: Path, backend: str) -> None:
    af = opened(tmp_path, backend)
    document = af.rag.upload(io.BytesIO(b"The keys hang in the blue cupboard."), name="keys.txt")
    shutil.rmtree(tmp_path / "u")
    with pytest.raises(NotFound, match=r"is missing in .*; ingest the file again"):
        af.rag.original(document.id)
    assert "blue cupboard" in af.rag.query("Where are the keys?").text
    again = af.rag.upload(io.BytesIO(b"Tea is served at four."), name="tea.txt")
    assert af.rag.original(again.id) == b"Tea is served at four."
    assert af.rag.upload(io.BytesIO(b"The keys hang in the blue cupboard."), name="keys.txt").unchanged
    af.rag.remove(document.id)
    assert [each.name for each in af.rag.documents()] == ["tea.txt"]
    af.close()


def never(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("nobody works here")


def test_jobs_whose_file_is_deleted_are_told_once_and_new_ones_are_taken(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "i", tmp_path / "u", never, most=10, days=1)
    jobs._worker.stop()  # they are to wait here
    (tmp_path / "i").mkdir()
    task = Task("default", ("a.txt",), {})
    lost = jobs.submit(task, [io.BytesIO(b"words")])
    for path in (tmp_path / "i").glob("jobs.sqlite*"):
        path.unlink()
    with pytest.raises(StoreError, match="while it was open"):
        jobs.get(lost.id)
    job = jobs.submit(task, [io.BytesIO(b"words")])
    assert jobs.get(job.id).state == "queued"
    with pytest.raises(NotFound):
        jobs.get(lost.id)
    jobs.close()


def test_keys_that_are_deleted_open_nothing(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    _, secret = keys.make("office")
    assert keys.grant_of(secret)
    (tmp_path / "keys.json").unlink()
    (tmp_path / "keys.lock").unlink(missing_ok=True)
    assert keys.ever_made
    with pytest.raises(AgentFormerError, match="does not exist in this memory, or was revoked"):
        keys.grant_of(secret)
    _, other = keys.make("office again")
    assert keys.grant_of(other)


def a_disk_is_taken_away(folder: str) -> None:
    for backend in BACKENDS:
        disk = Path(folder) / backend
        mount(disk)
        af = opened(disk, backend)
        af.memory.store_many(LANTERNS)
        assert af.memory.search("heron")
        shutil.copytree(disk, Path(folder) / f"{backend}-kept", ignore=shutil.ignore_patterns("*.lock"))
        unmount(disk)
        check_refused(af, "while it was open")
        af.close()
        assert not list(disk.iterdir()), "something was put where the disk had been"
        with opened(Path(folder) / f"{backend}-kept", backend) as af:
            assert facts(af) == LANTERNS


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_disk_that_goes_away_is_missed_at_once(tmp_path: Path) -> None:
    apart(a_disk_is_taken_away, tmp_path)


if __name__ == "__main__":
    play(globals())
