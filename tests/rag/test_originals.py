"""Which original files are deleted: those of removed documents and of uploads that did not end, and no others."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from agentformer.errors import StoreError
from agentformer.factory import AgentFormer, connect
from agentformer.rag import originals
from agentformer.testing import make_entry
from agentformer.types import MemoryEntry, Scope

TEXT = b"The numbat sleeps in a log. " * 5
OTHER = b"The quokka smiles. " * 5


ROUTES = {"faiss": "", "local_json": "", "routed": "kind:document=local_json"}


@pytest.fixture(params=ROUTES)
def af(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentFormer]:
    with opened(tmp_path, request.param) as memory:
        yield memory


def opened(folder: Path, store: str) -> AgentFormer:
    backend = "local_json" if store == "local_json" else "faiss"
    settings = {"index_dir": folder / "i", "upload_dir": folder / "u", "backend": backend, "routes": ROUTES[store]}
    return connect(**settings, embedder="hashing", embed_retry_seconds=0)


def again(af: AgentFormer) -> AgentFormer:
    """Open the same memory a second time, as another process does."""
    return AgentFormer(af.settings)


def files(af: AgentFormer) -> list[str]:
    """Return the names of all files in the upload folder, except the lock of the folder."""
    names = (path.name for path in af.settings.upload_dir.rglob("*") if path.is_file())
    return sorted(name for name in names if name != ".lock")


def name_of(data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()}.bin"


def document(data: bytes) -> MemoryEntry:
    return make_entry("numbat.txt", kind="document", metadata={"sha256": hashlib.sha256(data).hexdigest()})


def write(af: AgentFormer, data: bytes, name: str = "") -> Path:
    path = af.originals.files.path(hashlib.sha256(data).hexdigest())
    path = path.with_name(name) if name else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_removal_that_was_killed_before_the_deletion_is_completed(af: AgentFormer) -> None:
    stored = af.rag.upload(TEXT, name="numbat.txt")
    af.backend.remove([stored.id])
    assert files(af) == [name_of(TEXT)] and [row.id for row in af.backend.absent_documents()] == [stored.id]
    again(af).close()
    assert files(af) == [] and list(af.backend.absent_documents()) == []


def test_a_replacement_that_was_killed_before_the_deletion_is_completed(af: AgentFormer) -> None:
    former = af.rag.upload(TEXT, name="numbat.txt")
    af.backend.store([document(OTHER)], replacing=[[former.id]])
    assert files(af) == [name_of(TEXT)]
    again(af).close()
    assert files(af) == []


def test_the_files_of_a_killed_upload_are_deleted(af: AgentFormer) -> None:
    lost = document(TEXT)
    af.originals.folder.mkdir(parents=True)
    (af.originals.folder / ".upload-killed").touch()
    af.backend.announce([lost], ".upload-killed")
    file = write(af, TEXT)
    file.with_name(f".{file.name}.1.1").touch()  # the killed process was writing, and another process has its id now
    kept = write(af, OTHER)
    again(af).close()
    assert files(af) == [kept.name] and list(af.backend.absent_documents()) == []


def test_the_files_of_a_running_upload_are_kept(af: AgentFormer) -> None:
    former = af.rag.upload(TEXT, name="numbat.txt")
    new = document(TEXT)
    with af.originals.storing([new], [TEXT]):
        af.rag.remove(former.id)  # the same bytes
        again(af).close()
        assert name_of(TEXT) in files(af)
        assert [check.findings for check in af.verify(repair=True) if check.name.endswith("uploads")] == [()]
        af.backend.store([new])
    assert files(af) == [name_of(TEXT)] and list(af.backend.absent_documents()) == []
    af.backend.remove([new.id])
    af.originals.sweep()
    assert files(af) == []


def test_a_refused_upload_leaves_no_file(af: AgentFormer) -> None:
    with pytest.raises(StoreError), af.originals.storing([document(TEXT)], [TEXT]):
        assert name_of(TEXT) in files(af)
        raise StoreError("refused")
    assert files(af) == [] and list(af.backend.absent_documents()) == []


def test_a_file_of_a_document_that_came_back_is_kept(af: AgentFormer) -> None:
    former = af.rag.upload(TEXT, name="numbat.txt", namespace="one")
    af.rag.upload(TEXT, name="numbat.txt", namespace="two")
    af.rag.remove(former.id)
    assert files(af) == [name_of(TEXT)] and list(af.backend.absent_documents()) == []
    af.memory.remove(Scope("two"))
    assert files(af) == []


def test_an_original_of_a_document_that_was_replaced_meanwhile_is_not_restored(af: AgentFormer) -> None:
    """An upload of stored bytes restores a missing original. If another process replaces the document between these
    two steps, nobody would delete the restored file."""
    af.originals.restore(TEXT)
    assert files(af) == []
    stored = af.rag.upload(TEXT, name="numbat.txt")
    af.originals.files.path(stored.sha256).unlink()
    af.originals.restore(TEXT)
    assert files(af) == [name_of(TEXT)]


def test_without_the_lock_of_an_upload_its_file_is_kept(af: AgentFormer) -> None:
    """The end of such an upload is not known: the database may be an older copy, in which a stored document is still
    announced."""
    file = write(af, TEXT)
    af.backend.announce([document(TEXT)], ".upload-gone")
    again(af).close()
    assert files(af) == [file.name] and list(af.backend.absent_documents()) == []


def test_a_strange_digest_or_name_deletes_nothing(af: AgentFormer) -> None:
    stranger = write(af, TEXT, "notes.bin")
    entry = make_entry("x", kind="document", metadata={"sha256": f"../{stranger.parent.name}/notes"})
    af.backend.store([entry])
    af.backend.remove([entry.id])
    again(af).close()
    assert files(af) == ["notes.bin"]


def test_a_file_that_cannot_be_deleted_is_deleted_later(
    af: AgentFormer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored = af.rag.upload(TEXT, name="numbat.txt")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "agentformer"):
        for place, real in ((os, os.unlink), (Path, Path.unlink)):
            patch.setattr(place, "unlink", refusing(af, real))
        af.rag.remove(stored.id)
    assert files(af) == [name_of(TEXT)] and "may remain in" in caplog.text
    again(af).close()
    assert files(af) == []


def refusing(af: AgentFormer, real: Callable[..., None]) -> Callable[..., None]:
    """A deletion that refuses the files of the upload folder."""

    def delete(path: str | Path, *arguments: object, **options: object) -> None:
        if af.settings.upload_dir in Path(path).parents:
            raise PermissionError(13, "Permission denied")
        real(path, *arguments, **options)

    return delete


def test_a_memory_without_an_upload_folder_keeps_the_record(af: AgentFormer) -> None:
    """A command that was started in another folder may look for the originals in a wrong place."""
    af.backend.announce([document(TEXT)], ".upload-x")
    again(af).close()
    assert len(af.backend.absent_documents()) == 1 and not af.settings.upload_dir.exists()


def test_a_namespace_that_cannot_be_read_may_need_the_file(tmp_path: Path) -> None:
    with opened(tmp_path, "local_json") as af:
        first = af.rag.upload(TEXT, name="numbat.txt")
        af.rag.upload(TEXT, name="numbat.txt", namespace="other")
        af.backend.remove([first.id])
        damaged = tmp_path / "i" / "memory-other.json"
        sound = damaged.read_bytes()
        damaged.write_bytes(sound[:-9])
        again(af).close()
        assert files(af) == [name_of(TEXT)]
        damaged.write_bytes(sound)
        again(af).close()
        assert files(af) == [name_of(TEXT)] and list(af.backend.absent_documents()) == []


def test_the_lock_of_an_upload_is_held_until_its_end(af: AgentFormer) -> None:
    with af.originals.storing([document(TEXT)], []):
        (upload,) = af.originals.folder.glob(".upload-*")
        with pytest.raises(TimeoutError):
            FileLock(str(upload)).acquire(timeout=0)
    assert list(af.originals.folder.glob(".upload-*")) == []


def test_an_upload_whose_lock_is_held_is_running(tmp_path: Path) -> None:
    """A sweep beside it must go on, and keep its files."""
    uploads = originals._Uploads(tmp_path)
    upload = uploads.new()
    upload.acquire()
    assert uploads.is_running(upload.name)
    upload.release()
    assert not uploads.is_running(upload.name)
