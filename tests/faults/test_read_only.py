"""A store on a disk that cannot be written: it is read and searched as it is, and each write says why it cannot be."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mounts import apart, beside, mount, play, remount, view_of, why_not

import agentformer
from agentformer.cli import main
from agentformer.errors import StoreError, StoreFull

BACKENDS = ["faiss", "local_json"]
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def opened(disk: Path, backend: str) -> agentformer.AgentFormer:
    return agentformer.connect(
        index_dir=disk / "i", upload_dir=disk / "u", backend=backend, embedder="hashing:64", cleanup_interval=0
    )


def fill(af: agentformer.AgentFormer) -> None:
    af.memory.store_many([f"heron {n} stands by lantern{n}" for n in range(50)])
    assert af.rag.upload(io.BytesIO(b"The keys hang in the blue cupboard."), name="keys.txt").status == "ready"
    assert af.memory.search("heron")


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except StoreFull as error:
        return str(error)
    raise AssertionError("it was written")


def check_reading(af: agentformer.AgentFormer, backend: str) -> None:
    memory = af.memory
    entries = memory.list(limit=1000)
    assert sum(entry.kind == "fact" for entry in entries) == 50
    for mode in ("hybrid", "lexical", "dense") if backend == "faiss" else ("hybrid", "lexical"):
        hits = memory.search("heron lantern7", mode=mode, limit=50)
        assert "heron 7 stands by lantern7" in [hit.entry.content for hit in hits[:5]], mode
        assert not hits.warnings, hits.warnings
    assert "blue cupboard" in af.rag.query("Where are the keys?").text
    (document,) = af.rag.documents()
    assert af.rag.original(document.id) == b"The keys hang in the blue cupboard."
    assert memory.get(entries[0].id).content == entries[0].content and not list(memory.history(entries[0].id))
    assert af.status()["entries"] == 53


def check_refusals(af: agentformer.AgentFormer, backend: str) -> None:
    first = af.memory.list(limit=1)[0].id
    writes: list[Callable[[], Any]] = [
        lambda: af.memory.store("x"),
        lambda: af.memory.add_message("s", "user", "hello"),
        lambda: af.memory.update(first, content="y"),
        lambda: af.memory.remove(first),
        lambda: af.rag.upload(io.BytesIO(b"some words"), name="new.txt"),
        lambda: af.backend.lease("cleaning", "me", 5),
    ]
    if backend == "faiss":
        writes.append(lambda: af.reembed("hashing:96"))
    for number, write in enumerate(writes):
        told = refusal(write)
        assert "cannot be" in told and "Traceback" not in told, (number, told)


def command(disk: Path, backend: str, *arguments: str) -> tuple[int, str]:
    where = ["--index-dir", f"{disk}/i", "--upload-dir", f"{disk}/u"]
    done = CliRunner().invoke(main, [*arguments, *where], env={"AGENTFORMER_BACKEND": backend})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


def a_disk_becomes_read_only(folder: str, backend: str) -> None:
    disk = Path(folder) / "disk"
    mount(disk)
    with opened(disk, backend) as af:
        fill(af)
    remount(disk, "ro")
    with opened(disk, backend) as af:
        check_reading(af, backend)
        check_refusals(af, backend)
        check_reading(af, backend)
    code, told = command(disk, backend, "remember", "x")
    assert code == 3 and "cannot be written" in told, told
    if backend == "faiss":
        code, told = command(disk, backend, "search", "heron lantern7")
        assert code == 0 and "heron 7 stands" in told, told
        code, told = command(disk, backend, "doctor")
        assert code == 0 and "no problems found" in told, told
        code, told = command(disk, backend, "doctor", "--repair")
        assert code == 3 and "cannot be written" in told, told
        code, told = command(disk, backend, "export", "--to", f"{folder}/out")
        assert code == 0 and (Path(folder) / "out").is_dir(), told
    remount(disk, "rw")
    with opened(disk, backend) as af:
        check_reading(af, backend)
        af.memory.store("an egret comes by egretlantern")
        assert af.memory.search("egretlantern")[0].entry.content == "an egret comes by egretlantern"


def it_becomes_read_only_while_it_is_open(folder: str, backend: str) -> None:
    """What the log held, and no file beside it, is what is read; a store that is left like that is told."""
    disk = Path(folder) / "disk"
    mount(disk)
    af = opened(disk, backend)
    fill(af)
    kept = [entry.id for entry in af.memory.list(limit=1000)]
    stop = subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True, timeout=60)
    assert stop.returncode, "files are open for writing, so a disk is not made read-only under them"
    if backend == "faiss":
        pid = os.fork()  # a copy that is taken while the store is open has its last changes in the log alone
        if pid == 0:
            os.execvp("cp", ["cp", "-a", f"{disk}/.", f"{folder}/copy"])
        assert os.waitpid(pid, 0)[1] == 0
        copy = Path(folder) / "copy"
        subprocess.run(["mount", "--bind", str(copy), str(copy)], check=True, timeout=60)
        (copy / "i" / "memory.sqlite3-shm").unlink()
        subprocess.run(["mount", "-o", "remount,bind,ro", str(copy)], check=True, timeout=60)
        try:
            opened(copy, backend)
        except StoreError as error:
            assert "copy the whole folder" in str(error), error
        else:
            raise AssertionError("changes were passed over")
        subprocess.run(["mount", "-o", "remount,bind,rw", str(copy)], check=True, timeout=60)
        with opened(copy, backend) as again:
            assert [entry.id for entry in again.memory.list(limit=1000)] == kept
    af.close()


def read_beside(view: Path, backend: str, pipe: Connection) -> None:
    pipe.recv()
    with opened(view, backend) as af:
        check_reading(af, backend)
        pipe.send(len(af.memory.list(limit=1000)))
        pipe.recv()
        pipe.send(af.memory.search("egretlantern")[0].entry.content)


def another_writes_what_is_read_only_here(folder: str, backend: str) -> None:
    """The same folder, mounted a second time for reading: what the writer acknowledges is read."""
    disk, view = Path(folder) / "disk", Path(folder) / "view"
    mount(disk)
    reader, pipe = beside(read_beside, view, backend)
    writer = opened(disk, backend)
    fill(writer)
    view_of(disk, view)
    pipe.send("open it")
    assert pipe.recv() == 53
    writer.memory.store("an egret comes by egretlantern")
    pipe.send("look again")
    assert pipe.recv() == "an egret comes by egretlantern"
    reader.join(60)
    assert reader.exitcode == 0
    writer.close()


def remember_beside(disk: Path, pipe: Connection) -> None:
    pipe.recv()
    pipe.send(command(disk, "faiss", "remember", "an egret"))


def a_store_is_begun_elsewhere_while_it_is_read(folder: str) -> None:
    """A file that SQLite was told will not change has changed: nothing is answered from it."""
    disk, view = Path(folder) / "disk", Path(folder) / "view"
    mount(disk)
    _, pipe = beside(remember_beside, disk)
    with opened(disk, "faiss") as af:
        fill(af)
    view_of(disk, view)
    with opened(view, "faiss") as reader:
        assert len(reader.memory.list(limit=1000)) == 53
        pipe.send("remember it")
        code, told = pipe.recv()
        assert code == 0, told
        try:
            reader.memory.list(limit=1000)
        except StoreError as error:
            assert "open the memory again" in str(error), error
        else:
            raise AssertionError("it was read on")
    with opened(view, "faiss") as reader:
        assert len(reader.memory.list(limit=1000)) == 54


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_on_a_read_only_disk_is_read_and_searched(tmp_path: Path, backend: str) -> None:
    apart(a_disk_becomes_read_only, tmp_path, backend)


def test_changes_that_are_in_the_log_alone_are_not_passed_over(tmp_path: Path) -> None:
    apart(it_becomes_read_only_while_it_is_open, tmp_path, "faiss")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reader_that_may_not_write_sees_what_another_acknowledges(tmp_path: Path, backend: str) -> None:
    apart(another_writes_what_is_read_only_here, tmp_path, backend)


def test_a_file_that_was_to_stay_as_it_is_is_not_read_on_when_it_changed(tmp_path: Path) -> None:
    apart(a_store_is_begun_elsewhere_while_it_is_read, tmp_path)


if __name__ == "__main__":
    play(globals())
