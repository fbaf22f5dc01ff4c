"""Folders: after a sync the documents are the files, nothing is read or embedded twice, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import agentformer
from agentformer.cli import main
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Forbidden, InvalidInput
from agentformer.rag import folder_files, folder_sync
from agentformer.rag.folder_files import FolderFiles, OwnFolders, SizeLimits, read_file
from agentformer.rag.folder_sync import SyncReport
from tests.faults.long_form import LONG
from tests.forked import SERVE, start
from tests.permissions import ordinary_user

LIMIT = 1_000_000
KILLS = 50 if LONG else 1


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    with connect(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def connect(folder: Path) -> agentformer.AgentFormer:
    return agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing", clean_every=0)


def write(root: Path, name: str, text: str | bytes) -> Path:
    """Write a file that was changed long ago, so that its stamp is sure."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    age(path)
    return path


def age(path: Path, seconds: float = 100.0) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def names(af: agentformer.AgentFormer) -> list[str]:
    return sorted(document.name for document in af.rag.documents())


def problems(items: Sequence[tuple[str, str]]) -> list[str]:
    return [name for name, _ in items]


@pytest.mark.process  # source code is read in a process
def test_documents_follow_the_files(af: agentformer.AgentFormer, root: Path) -> None:
    write(root, "keys.md", "The key of the cellar is with Anna.")
    write(root, "rules/dogs.txt", "Dogs are not allowed in the sauna.")
    write(root, "rules/fees.txt", "The fee is 20 euros.")
    first = af.rag.sync(root)
    assert (first.added, first.unchanged) == (("keys.md", "rules/dogs.txt", "rules/fees.txt"), 0)
    assert af.rag.query("Who has the key of the cellar?").citations[0].document == "keys.md"
    write(root, "keys.md", "The key of the cellar is with Berta now.")
    (root / "rules/dogs.txt").unlink()
    write(root, "new.txt", "The gate closes at ten.")
    second = af.rag.sync(root)
    assert (second.changed, second.removed, second.added) == (("keys.md",), ("rules/dogs.txt",), ("new.txt",))
    assert second.unchanged == 1
    assert names(af) == ["keys.md", "new.txt", "rules/fees.txt"]
    assert "Berta" in af.rag.query("Who has the key of the cellar?").text


@pytest.mark.process  # source code is read in a process
def test_an_unchanged_folder_is_not_read(
    af: agentformer.AgentFormer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        write(root, f"{number}.txt", f"The number of this file is {number}.")
    write(root, "broken.pdf", "%PDF-1.7 and nothing else")
    before = af.rag.sync(root)
    assert problems(before.failed) == ["broken.pdf"]
    monkeypatch.setattr(folder_sync, "read_file", lambda *_: pytest.fail("a file was read"))
    after = af.rag.sync(root)
    assert (after.unchanged, after.added, after.changed) == (5, (), ())
    assert after.failed == before.failed


def test_a_file_whose_time_changed_alone_is_read_once(
    af: agentformer.AgentFormer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(root, "a.txt", "The gate closes at ten.")
    af.rag.sync(root)
    age(path, 50.0)
    assert af.rag.sync(root).unchanged == 1
    monkeypatch.setattr(folder_sync, "read_file", lambda *_: pytest.fail("a file was read"))
    assert af.rag.sync(root).unchanged == 1


def test_a_file_that_was_just_written_is_read_again(af: agentformer.AgentFormer, root: Path) -> None:
    (root / "a.txt").write_text("The gate closes at ten.")
    assert af.rag.sync(root).added == ("a.txt",)
    state = (root / "a.txt").stat()
    (root / "a.txt").write_text("The gate closes at six.")
    os.utime(root / "a.txt", ns=(state.st_atime_ns, state.st_mtime_ns))  # as within one tick of the clock
    assert af.rag.sync(root).changed == ("a.txt",)


@pytest.mark.process  # source code is read in a process
def test_a_moved_file_keeps_its_vectors_and_its_citations_follow(
    af: agentformer.AgentFormer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "keys.md", "# Keys\n\nThe key of the cellar is with Anna.")
    write(root, "other.md", "# Other\n\nNothing here.")
    af.rag.sync(root, metadata={"site": "north"})
    (root / "below").mkdir()
    (root / "keys.md").rename(root / "below" / "cellar.md")
    monkeypatch.setattr(HashingEmbedder, "embed_documents", lambda *_: pytest.fail("a text was embedded"))
    report = af.rag.sync(root)
    assert (report.renamed, report.removed, report.added) == ((("keys.md", "below/cellar.md"),), (), ())
    monkeypatch.undo()
    citation = af.rag.query("Who has the key of the cellar?").citations[0]
    assert citation.document == "below/cellar.md"
    moved = next(document for document in af.rag.documents() if document.name == "below/cellar.md")
    assert (moved.origin, moved.metadata) == ((root / "below/cellar.md").resolve().as_posix(), {"site": "north"})
    assert af.rag.original(moved.id).startswith(b"# Keys")
    assert af.rag.sync(root).unchanged == 2


def test_a_file_without_text_keeps_no_other_document_alive(af: agentformer.AgentFormer, root: Path) -> None:
    write(root, "blank.txt", " \n")
    for name in ("a.txt", "b.txt", "c.txt"):
        write(root, name, f"The file {name} is here.")
    af.rag.sync(root)
    (root / "a.txt").unlink()
    (root / "b.txt").rename(root / "d.txt")
    report = af.rag.sync(root)
    assert (problems(report.failed), report.removed, report.renamed) == (
        ["blank.txt"],
        ("a.txt",),
        (("b.txt", "d.txt"),),
    )


def test_of_two_equal_files_one_is_moved_and_one_stays(af: agentformer.AgentFormer, root: Path) -> None:
    write(root, "a.txt", "The gate closes at ten.")
    write(root, "b.txt", "The gate closes at ten.")
    assert len(af.rag.sync(root).added) == 2
    (root / "a.txt").rename(root / "c.txt")
    assert af.rag.sync(root).renamed == (("a.txt", "c.txt"),)
    assert names(af) == ["b.txt", "c.txt"]


def test_a_missing_folder_and_a_lost_half_are_refused(af: agentformer.AgentFormer, root: Path) -> None:
    for number in range(4):
        write(root, f"{number}.txt", f"The number of this file is {number}.")
    af.rag.sync(root)
    for number in range(3):
        (root / f"{number}.txt").unlink()
    with pytest.raises(InvalidInput, match=r"3 of 4 files .* are gone, so nothing was changed"):
        af.rag.sync(root)
    assert len(names(af)) == 4
    assert len(af.rag.sync(root, delete=True).removed) == 3
    shutil.rmtree(root)
    with pytest.raises(InvalidInput, match="is not a folder"):
        af.rag.sync(root)
    assert names(af) == ["3.txt"]
    assert af.rag.sync(root, delete=True).removed == ("3.txt",)


def test_a_folder_that_was_moved_within_the_root_is_no_loss(af: agentformer.AgentFormer, root: Path) -> None:
    for number in range(4):
        write(root, f"old/{number}.txt", f"The number of this file is {number}.")
    af.rag.sync(root)
    (root / "old").rename(root / "new")
    report = af.rag.sync(root)
    assert (len(report.renamed), report.removed) == (4, ())
    assert names(af) == [f"new/{number}.txt" for number in range(4)]


def test_documents_that_no_sync_stored_stay(af: agentformer.AgentFormer, root: Path, tmp_path: Path) -> None:
    af.rag.upload(b"Uploaded without a path.", name="note.txt")
    af.rag.upload(write(tmp_path, "elsewhere.txt", "In another folder."))
    single = write(root, "single.txt", "Ingested before the sync.")
    af.rag.upload(single)
    assert af.rag.sync(root).unchanged == 1
    single.unlink()
    assert af.rag.sync(root).removed == ("single.txt",)
    assert names(af) == ["elsewhere.txt", "note.txt"]


def test_two_namespaces_follow_one_folder(af: agentformer.AgentFormer, root: Path) -> None:
    write(root, "a.txt", "The gate closes at ten.")
    assert af.rag.sync(root, namespace="one").added == af.rag.sync(root, namespace="two").added == ("a.txt",)


@pytest.mark.process  # source code is read in a process
def test_what_is_left_out(af: agentformer.AgentFormer, root: Path, tmp_path: Path) -> None:
    secret = write(tmp_path, "secret.txt", "Outside of the folder.")
    write(root, "kept.txt", "Read me.")
    for name in (
        ".hidden/a.txt",
        ".env",
        "node_modules/p/i.js",
        "build/out.txt",
        "env/lib/a.py",
        "photo.png",
        "empty.txt",
    ):
        write(root, name, "" if name == "empty.txt" else "Not read.")
    write(root, "pyproject.toml", "[project]\nname = 'kept'\n")
    write(root, "env/pyvenv.cfg", "home = /usr")
    write(root, "blob", bytes(range(256)) * 100)
    write(root, "app.js", "var a=1;" * 5_000)
    (root / "link.txt").symlink_to(secret)
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe")
    report = af.rag.sync(root)
    assert report.added == ("kept.txt", "pyproject.toml")
    assert dict(report.skipped) == {
        "app.js": "minified",
        "blob": "binary",
        "link.txt": "is a link to a place outside of the folder",
    }
    assert report.failed == ()


@pytest.mark.process  # source code is read in a process
def test_one_bad_file_does_not_stop_the_others(
    af: agentformer.AgentFormer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "bad.pdf", "%PDF-1.7 and nothing else")
    write(root, "changing.txt", "This file is written all the time.")
    write(root, "good.txt", "The gate closes at ten.")
    stat, changes = os.fstat, iter(range(1_000_000))

    def fstat(descriptor: int) -> os.stat_result:
        state = stat(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").resolve().name != "changing.txt":
            return state
        return os.stat_result(state, {"st_mtime_ns": next(changes)})

    monkeypatch.setattr(os, "fstat", fstat)
    report = af.rag.sync(root)
    monkeypatch.undo()
    assert report.added == ("good.txt",)
    assert problems(report.failed) == ["bad.pdf", "changing.txt"]
    assert "while it was read" in dict(report.failed)["changing.txt"]
    assert "changing.txt" in af.rag.sync(root).added


def test_a_file_that_became_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    secret = write(tmp_path, "secret.txt", "Outside of the folder.")
    write(root, "a.txt", "Inside.")
    (file,) = FolderFiles(root, LIMIT).files()
    (root / "a.txt").unlink()
    (root / "a.txt").symlink_to(secret)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_file(file, SizeLimits(LIMIT, LIMIT), lambda head: True)


def test_a_file_above_the_limit_is_reported(tmp_path: Path, root: Path) -> None:
    write(root, "log.txt", "one line\n" * 1_000)
    with agentformer.connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", max_file_bytes=5_000
    ) as af:
        report = af.rag.sync(root)
    assert report.skipped == (("log.txt", "has more than 5000 bytes (setting max_file_bytes)"),)


def test_generated_and_vendored_files_are_left_out(af: agentformer.AgentFormer, root: Path) -> None:
    for name in ("a.txt", "go.mod", "vendor/x.txt", "lib/third_party/y.txt", "lib/z.txt", "package-lock.json"):
        write(root, name, "Some text.")
    write(root, "pb.go", "// Code generated by protoc. DO NOT EDIT.\npackage pb\n")
    write(root, "elsewhere/notes.txt", "This note quotes: Code generated by protoc. DO NOT EDIT.")
    report = af.rag.sync(root)
    assert sorted(report.added) == ["a.txt", "elsewhere/notes.txt", "go.mod", "lib/z.txt"]
    assert dict(report.skipped) == {"package-lock.json": "generated", "pb.go": "generated"}


def test_contracts_with_vendors_are_no_vendored_code(af: agentformer.AgentFormer, root: Path) -> None:
    write(root, "vendor/contract.txt", "The vendor delivers in June.")
    assert af.rag.sync(root).added == ("vendor/contract.txt",)


def test_a_text_of_exactly_the_most_bytes_is_read(tmp_path: Path, root: Path) -> None:
    write(root, "fits.txt", "The gate closes at ten.".ljust(1_024))
    write(root, "longer.txt", "The gate opens at nine.".ljust(1_025))
    with agentformer.connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", sync_text_bytes=1_024
    ) as af:
        report = af.rag.sync(root)
    assert report.added == ("fits.txt",)
    assert report.skipped == (("longer.txt", "a text of more than 1024 bytes (setting sync_text_bytes)"),)


def test_a_log_of_200_megabytes_is_not_read(tmp_path: Path, root: Path) -> None:
    path = write(root, "server.log", "2026-11-24 started\n" * 1_000)
    write(root, "a.txt", "The gate closes at ten.")
    os.truncate(path, 200_000_000)  # sparse: nothing is written
    age(path, 100.0)
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        report = af.rag.sync(root)
    assert report.added == ("a.txt",)
    assert report.skipped == (("server.log", "a text of more than 8388608 bytes (setting sync_text_bytes)"),)


def test_a_submodule_is_part_of_its_repository(af: agentformer.AgentFormer, root: Path) -> None:
    write(root, ".gitmodules", '[submodule "lib"]\n\tpath = lib\n')
    write(root, ".git/config", "[core]\n")
    write(root, "lib/.git", "gitdir: ../.git/modules/lib\n")
    write(root, "lib/.gitignore", "*.tmp\n")
    write(root, "lib/a.tmp", "Not read.")
    write(root, "lib/a.txt", "Read.")
    assert af.rag.sync(root).added == ("lib/a.txt",)


def test_a_sync_that_ran_out_of_time_goes_on(af: agentformer.AgentFormer, root: Path) -> None:
    for number in range(5):
        write(root, f"{number}.txt", f"The number of this file is {number}.")
    af.rag.sync(root)
    for number in range(3, 8):
        write(root, f"{number}.txt", f"Now the number of this file is {number}.")
    (root / "0.txt").unlink()
    paused = af.rag.sync(root, seconds=0.0)
    assert (paused.left, paused.added, paused.changed, paused.removed) == (5, (), (), ())
    assert names(af) == [f"{number}.txt" for number in range(5)]
    report = af.rag.sync(root, seconds=600.0)
    assert (report.left, len(report.added), len(report.changed), report.removed) == (0, 3, 2, ("0.txt",))


def test_a_folder_that_became_a_link_is_not_followed(af: agentformer.AgentFormer, root: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not tell the path of an open file")
    write(tmp_path, "outside/a.txt", "Outside of the folder.")
    write(root, "in/a.txt", "Inside.")
    (file,) = FolderFiles(root.resolve(), LIMIT).files()
    shutil.rmtree(root / "in")
    (root / "in").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidInput, match="has become a link"):
        read_file(file, SizeLimits(LIMIT, LIMIT), lambda head: True)


@pytest.fixture
def allowing(tmp_path: Path, root: Path) -> Iterator[agentformer.AgentFormer]:
    places = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**places, embedder="hashing", sync_roots=str(root)) as af:
        yield af


def test_only_folders_below_the_allowed_ones_are_synced(
    allowing: agentformer.AgentFormer, root: Path, tmp_path: Path
) -> None:
    write(root, "notes/a.txt", "The gate closes at ten.")
    write(root, ".keys/b.txt", "Hidden.")
    write(tmp_path, "elsewhere/c.txt", "Elsewhere.")
    (root / "link").symlink_to(tmp_path / "elsewhere")

    def sync(folder: Path | str) -> dict[str, Any]:
        return allowing.toolbox.call("rag_sync", {"folder": str(folder)})

    assert sync(root / "notes")["added"] == ["a.txt"]
    refused = tmp_path / "elsewhere", root / "link", root / "..", "notes", tmp_path / "absent", "/", "\0"
    for folder in refused:
        with pytest.raises(Forbidden, match="is not below a folder of the setting sync_roots"):
            sync(folder)
    with pytest.raises(InvalidInput, match="is hidden"):
        sync(root / ".keys")
    assert names(allowing) == ["a.txt"]


def test_without_allowed_folders_there_is_no_tool(af: agentformer.AgentFormer, root: Path) -> None:
    assert "rag_sync" not in {tool.name for tool in af.toolbox.definitions()}
    with pytest.raises(Forbidden, match=r"the setting sync_roots .* names none"):
        af.rag.sync_allowed(str(root))


def test_relative_roots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be absolute paths"):
        agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", sync_roots="notes")


def test_a_folder_is_synced_over_http(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("flask")
    from tests.edges.mounted import grant, mounted

    write(root, "a.txt", "The gate closes at ten.")
    with mounted(tmp_path, sync_roots=str(root)) as host:
        answer = host.post("/api/rag/sync", {"folder": str(root), "metadata": {"site": "north"}})
        assert (answer.status_code, answer.json["added"], answer.json["left"]) == (200, ["a.txt"], 0)
        assert host.post("/api/rag/sync", {"folder": str(root)}).json["unchanged"] == 1
        assert [document.metadata for document in host.af.rag.documents()] == [{"site": "north"}]
        refused = host.post("/api/rag/sync", {"folder": str(tmp_path)})
        assert (refused.status_code, "sync_roots" in refused.json["detail"]) == (403, True)
        assert host.post("/api/rag/sync", {"folder": str(root)}, grant("write")).status_code == 403
        assert host.post("/api/rag/sync", {"folder": str(root)}, grant("read", "write", only=("x",))).status_code == 200
        assert [entry.namespace for entry in host.af.rag.documents(namespace="x")] == ["x"]
        host.af.markdown.export(root / "home")
        refused = host.post("/api/rag/sync", {"folder": str(root / "home")})
        assert (refused.status_code, "is a memory home" in refused.json["detail"]) == (400, True)
        os.mkfifo(root / ".gitignore")
        if can_store(root, LATIN):
            write(root, f"{LATIN}.txt", "The gate closes at nine.")
            answer = host.post("/api/rag/sync", {"folder": str(root)})
            assert (answer.status_code, answer.json["added"]) == (200, ["latin\\udce9.txt"])
            assert [problem["name"] for problem in answer.json["failed"]] == [".gitignore"]


def test_names_in_both_unicode_forms_are_two_files(af: agentformer.AgentFormer, root: Path) -> None:
    write(root, "a\u0308.txt", "Decomposed.")
    write(root, "\u00e4.txt", "Composed.")
    assert len(af.rag.sync(root).added) == 2
    assert af.rag.sync(root).unchanged == 2
    assert len(set(names(af))) == 2


LATIN = os.fsdecode(b"latin\xe9")  # a name that is not UTF-8


def can_store(folder: Path, name: str) -> bool:
    """Return whether the file system has such names."""
    try:
        (folder / name).write_text("")
        (folder / name).unlink()
    except (OSError, UnicodeError):
        return False
    return True


@pytest.mark.process  # source code is read in a process
def test_a_name_that_is_not_utf8_is_cleaned_and_the_other_files_are_stored(tmp_path: Path, root: Path) -> None:
    if not can_store(root, LATIN):
        pytest.skip("this file system has no names that are not UTF-8")
    write(root, f"{LATIN}.txt", "The gate closes at ten.")
    write(root, f"{LATIN}/below.txt", "The gate opens at six.")
    write(root, f"{LATIN}.pdf", "%PDF-1.7 and nothing else")
    write(root, "other.txt", "Dogs are not allowed.")
    places = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]

    def sync() -> dict[str, Any]:
        report: dict[str, Any] = json.loads(CliRunner().invoke(main, ["sync", str(root), "--json", *places]).stdout)
        return report

    first = sync()
    assert sorted(first["added"]) == ["latin\\udce9.txt", "latin\\udce9/below.txt", "other.txt"]
    assert [problem["name"] for problem in first["failed"]] == ["latin\\udce9.pdf"]
    assert sync()["unchanged"] == 3
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        assert "latin ~bd45a34e.txt" in names(af)  # as `ingest` names it
    (root / f"{LATIN}.txt").rename(root / "new.txt")
    assert sync()["renamed"] == [["latin\\udce9.txt", "new.txt"]]


def test_a_folder_whose_name_is_not_utf8_is_synced(af: agentformer.AgentFormer, root: Path) -> None:
    if not can_store(root, LATIN):
        pytest.skip("this file system has no names that are not UTF-8")
    write(root, f"{LATIN}/a.txt", "The gate closes at ten.")
    report = af.rag.sync(root / LATIN)
    assert (report.folder, report.added) == (f"{root.resolve().as_posix()}/latin\\udce9", ("a.txt",))
    assert af.rag.sync(root / LATIN).unchanged == 1


@pytest.mark.parametrize("name", [".gitignore", ".agentformerignore"])
def test_a_pipe_in_the_place_of_an_ignore_file_is_reported(root: Path, name: str) -> None:
    write(root, "a.txt", "The gate closes at ten.")
    os.mkfifo(root / name)
    found = FolderFiles(root, LIMIT)
    listed: list[str] = []
    listing = threading.Thread(target=lambda: listed.extend(file.name for file in found.files()), daemon=True)
    listing.start()
    listing.join(30)
    assert (listed, found.failed) == (["a.txt"], [(name, "cannot be read: not a regular file")])
    assert not found.complete


def test_a_file_that_became_a_pipe_is_not_read(root: Path) -> None:
    write(root, "a.txt", "Inside.")
    (file,) = FolderFiles(root.resolve(), LIMIT).files()
    (root / "a.txt").unlink()
    os.mkfifo(root / "a.txt")
    with pytest.raises(InvalidInput, match="not a regular file any more"):
        read_file(file, SizeLimits(LIMIT, LIMIT), lambda head: True)


@pytest.mark.process  # JSON is read in a process
def test_the_folders_of_the_memory_itself_are_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    write(root, "notes/a.txt", "The gate closes at ten.")
    places = ["--index-dir", "indexes", "--upload-dir", "files", "--embedder", "hashing", "--json"]

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(main, [*arguments, *places])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    run("sync", "notes")  # creates the folders
    (root / "files" / "b.txt").write_text("The gate opens at six.")
    (root / "indexes").mkdir(exist_ok=True)  # a memory on a server has none
    (root / "indexes" / "c.txt").write_text("The gate opens at five.")
    report = run("sync", ".", "--namespace", "synced")
    assert report["added"] == ["notes/a.txt"]
    assert report["skipped"] == [
        {"name": name, "reason": "belongs to the memory itself"} for name in ("files", "indexes")
    ]
    ingested = run("ingest", ".", "files", "--namespace", "ingested")["documents"]
    assert [document["name"] for document in ingested] == ["notes/a.txt"]
    refused = CliRunner().invoke(main, ["sync", "files", *places])
    assert (refused.exit_code, "belongs to the memory itself" in refused.output) == (2, True)


def test_the_private_folder_of_a_home_belongs_to_the_memory(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    af.markdown.export(tmp_path / "home")
    own = OwnFolders([])
    assert (tmp_path / "home" / ".agentformer" in own, tmp_path / "home" in own) == (True, False)


def test_an_empty_folder_is_not_the_current_one(
    af: agentformer.AgentFormer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    write(root, "a.txt", "The gate closes at ten.")
    folder: Any
    for folder, message in (("", "folder: is empty"), (0, "got int"), (b"x", "got bytes"), ("a\0", "NUL")):
        with pytest.raises(InvalidInput, match=message):
            af.rag.sync(folder)
        with pytest.raises(InvalidInput, match=message):
            af.markdown.sync(folder)
    for command in ("sync", "ingest"):
        done = CliRunner().invoke(main, [command, ""])
        assert (done.exit_code, "is empty" in done.output) == (2, True)
    assert af.rag.documents() == []


def test_a_memory_home_is_no_folder_of_documents(allowing: agentformer.AgentFormer, root: Path) -> None:
    allowing.markdown.export(root / "home")
    for sync in (allowing.rag.sync, allowing.rag.sync_allowed):
        with pytest.raises(InvalidInput, match=r"is a memory home.*`agentformer sync` or `af\.markdown\.sync`"):
            sync(str(root / "home"))


def forbidden(root: Path) -> Path:
    """Write a folder with one readable file, a subfolder whose files may not be read, a link to a folder below a
    forbidden one, and a link to a file there. Return the forbidden folder."""
    private = root.parent / "private"
    write(private, "sub/x.txt", "secret")
    write(root, "ok.txt", "The gate closes at ten.")
    write(root, "s/in.txt", "The boats are blue.")
    (root / "folder").symlink_to(private / "sub")
    (root / "file.txt").symlink_to(private / "sub" / "x.txt")
    (root / "s").chmod(0o600)
    private.chmod(0)
    return private


def test_places_without_permission_are_reported_and_the_other_files_are_stored(
    af: agentformer.AgentFormer, root: Path
) -> None:
    private = forbidden(root)
    with ordinary_user():
        report = af.rag.sync(root)
        for sync in (af.rag.sync, af.markdown.sync):
            with pytest.raises(InvalidInput, match=r"private/sub.* cannot be read: Permission denied"):
                sync(private / "sub")
    assert report.added == ("ok.txt",)
    assert report.failed == (("s/in.txt", "cannot be read: Permission denied"),)
    outside = "is a link to a place outside of the folder"
    assert report.skipped == (("file.txt", outside), ("folder", outside))


def test_ingest_reports_places_without_permission_and_stores_the_other_files(tmp_path: Path, root: Path) -> None:
    forbidden(root)
    write(root, "unlisted/y.txt", "The gate opens at six.")
    (root / "unlisted").chmod(0o300)
    places = ["--index-dir", str(tmp_path / "i"), "--upload-dir", str(tmp_path / "u"), "--embedder", "hashing"]
    with ordinary_user():
        done = CliRunner().invoke(main, ["ingest", str(root), *places])
    lines = done.output.splitlines()
    assert (done.exit_code, lines[-1]) == (1, "4 failed, 1 ready")
    assert any("unlisted cannot be listed: Permission denied" in line for line in lines)


@pytest.mark.parametrize("command", ["ingest", "sync", "import", "eval", "optimize", "status --index-dir"])
def test_a_path_that_cannot_be_is_refused(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, [*command.split(), "x" * 300])
    assert (done.exit_code, "cannot be read: File name too long" in done.output) == (2, True)


def test_a_folder_whose_name_is_too_long_is_refused(af: agentformer.AgentFormer) -> None:
    for sync in (af.rag.sync, af.markdown.sync, af.markdown.export):
        with pytest.raises(InvalidInput, match="File name too long"):
            sync("x" * 300)


def test_a_line_break_in_a_file_name_does_not_break_the_line(tmp_path: Path, root: Path) -> None:
    write(root, "a\nready.txt", "The gate closes at ten.")
    places = ["--index-dir", str(tmp_path / "i"), "--upload-dir", str(tmp_path / "u"), "--embedder", "hashing"]
    done = CliRunner().invoke(main, ["sync", str(root), *places])
    assert done.output.splitlines()[0] == "added      a ready.txt"


PART = st.sampled_from(["a", "b", "ab", "c.txt", "d.log", "src", "x y"])
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
PATTERN = st.one_of(
    PATH,
    PATH.map("/{}".format),
    PATH.map("{}/".format),
    PATH.map("!{}".format),
    PART.map("**/{}".format),
    PART.map("{}/**".format),
    st.sampled_from(["*.log", "a*", "?b", "[ab]", "# note", "", "src/*.txt", "!*.log", "x\\ y", "a/**/c.txt"]),
)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@settings(max_examples=150 if LONG else 25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paths=st.sets(PATH, min_size=1, max_size=10),
    ignored=st.lists(PATTERN, max_size=4),
    below=st.lists(PATTERN, max_size=2),
)
def test_what_git_ignores_is_ignored(paths: set[str], ignored: list[str], below: list[str], tmp_path: Path) -> None:
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    for path in sorted(paths):
        if not any((root / parent).is_file() for parent in Path(path).parents) and not (root / path).is_dir():
            write(root, path, "text")
    (root / ".gitignore").write_text("\n".join(ignored) + "\n")
    if (root / "src").is_dir():
        (root / "src" / ".gitignore").write_text("\n".join(below) + "\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    expected = sorted(name for name in listed if name and not Path(name).name.startswith("."))
    assert sorted(file.name for file in FolderFiles(root.resolve(), LIMIT).files()) == expected


def test_the_second_file_of_rules_decides(root: Path) -> None:
    write(root, ".gitignore", "*.log\n")
    write(root, ".agentformerignore", "!keep.log\nprivate/\n")
    for name in ("a.log", "keep.log", "private/b.txt", "c.txt"):
        write(root, name, "text")
    assert [file.name for file in FolderFiles(root, LIMIT).files()] == ["c.txt", "keep.log"]


SCRIPT = """
import agentformer
with agentformer.connect(index_dir=store + "/i", upload_dir=store + "/u", embedder="hashing") as af:
    af.rag.sync(root, progress=lambda done, total: print(done, flush=True))
"""


@pytest.mark.fault
def test_after_a_kill_the_next_sync_completes_the_first(tmp_path: Path, root: Path) -> None:
    for number in range(40):
        write(root, f"{number % 4}/{number}.txt", f"The gate {number} closes at {number % 12} o'clock. " * 5)
    with connect(tmp_path / "whole") as whole:
        whole.rag.sync(root)
        expected = state(whole)
    rng = random.Random(7)
    for turn in range(KILLS):
        folder = tmp_path / f"killed-{turn}"
        code = f"store, root = {str(folder)!r}, {str(root)!r}\n{SCRIPT}"
        child = start(code, SERVE, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE)
        done = str(rng.randrange(40))  # files that were stored before the kill
        assert child.stdout is not None and any(line.strip() == done for line in child.stdout)
        child.kill()
        child.communicate(timeout=30)
        with connect(folder) as af:
            assert af.rag.sync(root).failed == ()
            assert state(af) == expected
            assert all(check.found == 0 for check in af.verify())
        shutil.rmtree(folder)


def state(af: agentformer.AgentFormer) -> list[tuple[object, ...]]:
    documents = af.rag.documents()
    return sorted(
        (document.name, document.sha256, document.stamp, tuple(chunk.content for chunk in af.rag.chunks(document.id)))
        for document in documents
    )


@pytest.mark.process  # source code is read in a process
def test_the_command_reports_and_its_exit_code_tells_of_failures(tmp_path: Path, root: Path) -> None:
    write(root, "keys.md", "The key of the cellar is with Anna.")
    places = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["sync", *arguments, *places])
        return done.exit_code, done.output

    code, output = run(str(root))
    assert (code, output.splitlines()[0]) == (0, "added      keys.md")
    assert run(str(root)) == (0, "1 unchanged\n")
    write(root, "bad.pdf", "%PDF-1.7 and nothing else")
    code, output = run(str(root))
    assert code == 1
    assert "failed     bad.pdf" in output
    code, output = run(str(root / "absent"))
    assert code == 2
    assert "is not a folder" in output


@pytest.mark.process
def test_watch_follows_changes_until_it_is_interrupted(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("watchfiles")
    write(root, "a.txt", "The gate closes at ten.")
    places = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]
    code = f"from agentformer.cli import main\nmain({['sync', str(root), '--watch', '--json', *places]!r})"
    child = start(code, SERVE, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE)
    limit = threading.Timer(90, child.kill)  # after which `readline` returns ""
    limit.start()
    try:
        assert child.stdout is not None
        assert '"added": ["a.txt"]' in child.stdout.readline()
        write(root, "b.txt", "The gate closes at six.")
        assert '"b.txt"' in child.stdout.readline()
        if can_store(tmp_path, LATIN):  # the watcher ends at such a name, and is started again
            write(root, f"{LATIN}.txt", "The gate closes at nine.")
            assert any("latin" in line for line in child.stdout)
            write(root, "c.txt", "The gate closes at eight.")
            assert any('"c.txt"' in line for line in child.stdout)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) in (0, 130)
    finally:
        limit.cancel()
        child.kill()
        child.wait()


@pytest.mark.process  # source code is read in a process
def test_a_report_counts_every_file_once(af: agentformer.AgentFormer, root: Path) -> None:
    for number in range(6):
        write(root, f"{number}.txt", f"The number of this file is {number}.")
    write(root, "bad.pdf", "%PDF-1.7 and nothing else")
    seen: list[tuple[int, int]] = []
    report: SyncReport = af.rag.sync(root, progress=lambda done, total: seen.append((done, total)))
    assert len(report.added) + len(report.failed) == 7
    assert seen == [(number, 7) for number in range(8)]


def test_nested_ignore_files_are_bounded_together(root: Path) -> None:
    size = folder_files._MAX_RULES // 4
    rules = b"secret.txt\n".ljust(size, b"#")
    inner = [f"{'in/' * depth}" for depth in range(6)]
    for prefix in (*inner, "beside/"):
        write(root, f"{prefix}.gitignore", rules)
        for name in ("a.txt", "secret.txt"):
            write(root, f"{prefix}{name}", "text")
    found = FolderFiles(root, LIMIT)
    assert [file.name for file in found.files()] == ["a.txt", "beside/a.txt", *(f"{each}a.txt" for each in inner[1:4])]
    ((name, reason),) = found.failed
    assert name == "in/in/in/in/.gitignore" and "the folder is not read: with the ignore files above it" in reason
    assert not found.complete
