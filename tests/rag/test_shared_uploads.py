"""Memories that share one upload folder: no operation of one of them takes a file from another."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from agentformer.factory import AgentFormer, connect
from agentformer.jobs.queue import FOLDER, Jobs
from agentformer.jobs.store import Task
from agentformer.rag import ownership
from agentformer.rag.removals import Removals
from agentformer.types import Scope
from tests.edges.running import Running, form_of, wait_until
from tests.faults.long_form import LONG
from tests.jobs.helpers import RecordingIngestor, until

SAME = b"Both memories know that the quokka smiles. "
TEXTS = {name: f"The {name} sleeps in a log of its own. ".encode() for name in ("one", "two")}


class Desk:
    """Two memories, `one` and `two`, with one upload folder. Both have stored a document with the same bytes, a
    document of their own, and an upload that waits for a worker."""

    def __init__(self, folder: Path, backends: tuple[str, str] = ("faiss", "faiss")) -> None:
        self.folder = folder
        self.backends = dict(zip(TEXTS, backends, strict=True))
        self.waiting: dict[str, str] = {}

    def opened(self, name: str, backend: str = "", **settings: Any) -> AgentFormer:
        backend = backend or self.backends.get(name, "faiss")
        index = self.folder / name / "indexes"
        uploads = self.folder / "uploads"
        return connect(index_dir=index, upload_dir=uploads, backend=backend, embedder="hashing", **settings)

    def jobs(self, af: AgentFormer) -> Jobs:
        root = af.settings.upload_dir
        ingestor = RecordingIngestor()
        return Jobs(af.settings.index_dir, af.originals.folder, ingestor, most=9, days=7, former_dir=root)

    def fill(self, name: str) -> None:
        with self.opened(name) as af, closing(self.jobs(af)) as jobs:
            af.rag.upload(SAME, name="same.txt")
            af.rag.upload(TEXTS[name], name="own.txt")
            self.waiting[name] = name * 12
            jobs._files.put(self.waiting[name], [io.BytesIO(TEXTS[name])], None).release()
            jobs._store.add(self.waiting[name], Task("default", ("later.txt",), None), 9)

    def move_to_former_layout(self) -> None:
        """Move all files to where a version without owners had stored them."""
        root = self.folder / "uploads"
        for own in root.glob("memory-*"):
            for path in [each for each in own.rglob("*") if each.is_file() and each.name != ".lock"]:
                target = root / path.relative_to(own)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
            shutil.rmtree(own)
        for mark in self.folder.glob("*/indexes/owner-*"):
            mark.unlink()

    def check(self) -> None:
        """Check that each memory has the bytes of all its documents and of its waiting upload."""
        for name in TEXTS:
            with self.opened(name) as af, closing(self.jobs(af)) as jobs:
                self.check_documents(af)
                assert jobs.get(self.waiting[name]).state == "queued"
                with jobs._files.open(self.waiting[name], 0) as file:
                    assert file.read() == TEXTS[name]

    def check_documents(self, af: AgentFormer) -> None:
        for document in af.rag.documents():
            assert af.rag.original(document.id) in (SAME, *TEXTS.values(), b"another version")
        assert {check.name: check.found for check in af.verify()}["originals"] == 0


def _named(af: AgentFormer, name: str = "same.txt") -> str:
    return next((each.id for each in af.rag.documents() if each.name == name), "")


def _replace(desk: Desk, name: str) -> None:
    with desk.opened(name) as af:
        af.rag.upload(b"another version", name="same.txt")


def _remove(desk: Desk, name: str) -> None:
    with desk.opened(name) as af:
        if document := _named(af):
            af.rag.remove(document)


def _remove_all(desk: Desk, name: str) -> None:
    with desk.opened(name) as af:
        for document in af.rag.documents():
            af.rag.remove(document.id)


def _undo(desk: Desk, name: str) -> None:
    with desk.opened(name) as af:
        removals = Removals(af.backend, lambda document, version: af.rag.remove(document))
        if document := _named(af):
            removals.add(document, 60)
            removals.undo(document)


def _start(desk: Desk, name: str) -> None:
    """Start a server: it sweeps, and deletes the files of jobs that it does not know."""
    with desk.opened(name) as af, closing(desk.jobs(af)) as jobs:
        jobs._worker.wake = lambda: None  # type: ignore[method-assign]
        jobs.start()


def _crash(desk: Desk, name: str) -> None:
    """Remove a document without the deletion of its file, which the next opening deletes."""
    with desk.opened(name) as af:
        if document := _named(af):
            af.backend.remove([document])


def _forget(desk: Desk, name: str) -> None:
    with desk.opened(name) as af:
        af.memory.remove(Scope("default", kinds=("document",), metadata={"name": "same.txt"}))


def _repair(desk: Desk, name: str) -> None:
    with desk.opened(name) as af:
        af.verify(repair=True)


def _back_up_and_restore(desk: Desk, name: str) -> None:
    """Open the restored backup beside the memory, with the same upload folder, and remove everything there."""
    backup = desk.folder / f"backup-{name}"
    shutil.rmtree(backup, ignore_errors=True)
    with desk.opened(name) as af:
        missing = af.backup(backup).missing_originals
    assert missing == []
    place = desk.folder / f"restored-{name}" / "indexes"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(backup / "indexes", place)
    shutil.copytree(backup / "uploads", desk.folder / "uploads", dirs_exist_ok=True)
    with desk.opened(f"restored-{name}", desk.backends[name]) as af:
        desk.check_documents(af)
    desk.backends[f"restored-{name}"] = desk.backends[name]
    _remove_all(desk, f"restored-{name}")


def _copy_the_folder(desk: Desk, name: str) -> None:
    """Open a copy of the index folder, such as one for a trial, with the same upload folder."""
    place = desk.folder / f"trial-{name}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(desk.folder / name, place)
    desk.backends[f"trial-{name}"] = desk.backends[name]
    with desk.opened(f"trial-{name}") as af:
        desk.check_documents(af)
    _remove_all(desk, f"trial-{name}")


def _copy(desk: Desk, name: str) -> None:
    place = desk.folder / f"copy-{name}"
    shutil.rmtree(place, ignore_errors=True)
    with desk.opened(name) as af, desk.opened(f"copy-{name}", "local_json") as other:
        af.copy_to(other)
    _remove(desk, name)
    with desk.opened(f"copy-{name}", "local_json") as other:
        desk.check_documents(other)
    desk.backends[f"copy-{name}"] = "local_json"
    _remove_all(desk, f"copy-{name}")


def _export_and_import(desk: Desk, name: str) -> None:
    export = desk.folder / f"export-{name}"
    shutil.rmtree(export, ignore_errors=True)
    with desk.opened(name) as af:
        assert af.export_to(export).missing_originals == []
    shutil.rmtree(desk.folder / f"import-{name}", ignore_errors=True)
    with desk.opened(f"import-{name}") as af:
        af.import_from(export)
    _remove_all(desk, f"import-{name}")


OPERATIONS: dict[str, Callable[[Desk, str], None]] = {
    "replace": _replace,
    "remove": _remove,
    "remove all": _remove_all,
    "undo": _undo,
    "start": _start,
    "crash": _crash,
    "forget": _forget,
    "repair": _repair,
    "restore": _back_up_and_restore,
    "copy of the folder": _copy_the_folder,
    "copy": _copy,
    "import": _export_and_import,
}


@pytest.fixture(scope="module", params=[("faiss", "faiss"), ("local_json", "faiss")], ids="-".join)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("shared"), request.param)
    for name in TEXTS:
        desk.fill(name)
    return desk


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["owners", "former"])
@pytest.mark.parametrize("first", OPERATIONS)
def test_no_operation_takes_a_file_from_the_other_memory(filled: Desk, tmp_path: Path, first: str, layout: str) -> None:
    """Every pair of operations. The long form runs each pair with both backends and both layouts, and the short form
    with one of these four."""
    form = 2 * (layout == "former") + ("local_json" in filled.backends.values())
    for number, second in enumerate(OPERATIONS):
        if not LONG and (number + [*OPERATIONS].index(first)) % 4 != form:
            continue
        place = tmp_path / str(number)
        shutil.copytree(filled.folder, place, symlinks=True)
        desk = Desk(place, tuple(filled.backends.values()))  # type: ignore[arg-type]
        desk.waiting = filled.waiting
        if layout == "former":
            desk.move_to_former_layout()
        OPERATIONS[first](desk, "one")
        desk.check()
        OPERATIONS[second](desk, "two")
        desk.check()
        OPERATIONS[first](desk, "one")
        desk.check()


def originals(folder: Path) -> list[Path]:
    return list((folder / "uploads").rglob("*.bin"))


def test_a_memory_deletes_its_own_file_and_leaves_one_of_a_former_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path)
    desk.fill("one")
    _remove_all(desk, "one")
    assert list((tmp_path / "uploads").rglob("*.bin")) == []
    with desk.opened("one") as af:
        af.rag.upload(SAME, name="same.txt")
    desk.move_to_former_layout()
    with desk.opened("one") as af:
        assert af.rag.original(_named(af)) == SAME
        assert "stay, because another memory may use them" not in caplog.text
        af.rag.remove(_named(af))
    (left,) = (tmp_path / "uploads").rglob("*.bin")
    assert left.read_bytes() == SAME and str(left) in caplog.text


def test_a_copy_of_both_folders_deletes_its_files_and_one_that_moved_too(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "here")
    desk.fill("one")
    copied, moved = tmp_path / "copied", tmp_path / "moved"
    shutil.copytree(desk.folder, copied)
    _remove_all(Desk(copied), "one")
    assert originals(copied) == [] and len(originals(desk.folder)) == 2
    desk.folder.rename(moved)
    _remove_all(Desk(moved), "one")
    assert originals(moved) == []


def test_a_copy_that_was_killed_before_it_wrote_its_mark_keeps_the_folder_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path / "here")
    desk.fill("one")
    copied = tmp_path / "copied"
    shutil.copytree(desk.folder, copied)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ownership, "write_mark", killed)
        with pytest.raises(KeyboardInterrupt):
            Desk(copied).opened("one")
    with Desk(copied).opened("one") as af:
        desk.check_documents(af)
    assert len([*(copied / "uploads").glob("memory-*")]) == 1


@pytest.mark.parametrize("both", [True, False], ids=["both folders", "the index folder"])
def test_a_copy_of_a_killed_server_ingests_its_waiting_uploads(tmp_path: Path, both: bool) -> None:
    """The server had stored no document yet, so nothing says to which memory its folder belongs."""
    desk = Desk(tmp_path / "here")
    with desk.opened("one") as af, closing(desk.jobs(af)) as jobs:
        jobs._files.put("waits", [io.BytesIO(SAME)], "secret").release()
        jobs._store.add("waits", Task("default", ("later.txt",), None), 9)
    former = af.originals.folder
    if both:
        copy = Desk(tmp_path / "copied")
        shutil.copytree(desk.folder, copy.folder)
        former = copy.folder / "uploads" / former.name
    else:
        copy = Desk(desk.folder)
        shutil.copytree(desk.folder / "one", desk.folder / "two")
    name = "one" if both else "two"
    with copy.opened(name) as af, closing(copy.jobs(af)) as jobs:
        assert af.originals.folder != former
        note = next(text for check in af.verify() if check.name == "jobs" for text in check.findings)
        assert str(former / FOLDER / "waits") in note and "takes copies of the 1 that wait" in note
        jobs.start()
        assert until(jobs, "waits").state == "done"
        ingestor = jobs._worker._ingestor
        assert isinstance(ingestor, RecordingIngestor) and ingestor.ingested == [("later.txt", SAME, "secret")]
    with desk.opened("one") as af, closing(desk.jobs(af)) as jobs, jobs._files.open("waits", 0) as file:
        assert file.read() == SAME and jobs.get("waits").state == "queued"


def test_a_restored_backup_deletes_its_files(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "here")
    desk.fill("one")
    with desk.opened("one") as af:
        af.backup(tmp_path / "backup")
    restored = Desk(tmp_path / "there")
    shutil.copytree(tmp_path / "backup" / "indexes", restored.folder / "one" / "indexes")
    shutil.copytree(tmp_path / "backup" / "uploads", restored.folder / "uploads")
    with restored.opened("one") as af:
        restored.check_documents(af)
    _remove_all(restored, "one")
    assert originals(restored.folder) == []


def test_a_copy_of_both_folders_that_is_given_the_first_upload_folder_deletes_nothing_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "here")
    desk.fill("one")
    shutil.copytree(desk.folder, tmp_path / "copied")
    copied = Desk(tmp_path / "copied")
    with copied.opened("one"):
        pass
    settings = {"index_dir": copied.folder / "one" / "indexes", "upload_dir": desk.folder / "uploads"}
    with connect(**settings, embedder="hashing") as af:
        for document in af.rag.documents():
            af.rag.remove(document.id)
    with desk.opened("one") as af:
        desk.check_documents(af)
        assert len(af.rag.documents()) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="changes the system's function")
def test_a_file_system_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*arguments: object, **options: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    desk = Desk(tmp_path)
    desk.fill("one")
    shutil.copytree(tmp_path / "one", tmp_path / "trial")
    with desk.opened("trial"):
        pass
    _remove_all(desk, "one")
    with desk.opened("trial") as af:
        desk.check_documents(af)
        assert len(af.rag.documents()) == 2


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with ExitStack() as ending:

        def serve(name: str, before: str = "") -> Running:
            (tmp_path / name).mkdir(exist_ok=True)
            places = {
                "AGENTFORMER_UPLOAD_DIR": str(tmp_path / "uploads"),
                "AGENTFORMER_INDEX_DIR": str(tmp_path / name),
            }
            running = Running(tmp_path / name, "--threads", "2", before=before, **places)
            ending.callback(running.close)
            return running

        yield serve


@pytest.mark.process
def test_the_waiting_uploads_of_two_running_servers_end_well(servers: Callable[..., Running]) -> None:
    def submit(server: Running, number: int) -> str:
        headers = {"Content-Type": "multipart/form-data; boundary=x", "Prefer": "respond-async"}
        status, job = server.ask("POST", "/api/rag/upload", form_of(f"{number}.txt", f"text {number} of it"), headers)
        assert status == 202
        return str(job["id"])

    waits = "import agentformer.jobs.queue as jobs; jobs._Worker.wake = lambda self: None"  # no worker takes a job
    one, two = servers("one", waits), servers("two", waits)
    jobs = [(server, submit(server, number)) for number in range(7) for server in (one, two)]
    assert one.end() == two.end() == 0
    one, two = servers("one"), servers("two")  # each start deletes the files of unknown jobs
    again = dict(zip(["one", "two"], [one, two], strict=True))
    states = {}
    for server, job in jobs:
        now = again[server.folder.name]

        def ended(now: Running = now, job: str = job) -> bool:
            states[job] = now.ask("GET", f"/api/jobs/{job}")[1]["state"]
            return states[job] not in ("queued", "running")

        wait_until(ended)
    assert set(states.values()) == {"done"} and len(states) == 14
    for number, server in itertools.product(range(7), (one, two)):
        assert f"{number}.txt" in server.documents()


def test_job_files_of_a_former_version_are_found_and_never_deleted_for_another_memory(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for name in TEXTS:
        desk.fill(name)
    desk.move_to_former_layout()
    for name in TEXTS:
        _start(desk, name)
    assert sorted(path.name for path in (tmp_path / "uploads" / FOLDER).iterdir() if path.is_dir()) == sorted(
        desk.waiting.values()
    )
    desk.check()
