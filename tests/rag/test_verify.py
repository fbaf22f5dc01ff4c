"""Verification of documents, over a backend in memory: each problem is reported once, with its number and its place."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import StoreDamaged, StoreError
from agentformer.jobs.queue import FILE as JOBS_FILE
from agentformer.rag import verify as verification
from agentformer.rag.documents import Document
from agentformer.rag.originals import Originals
from agentformer.rag.verify import StoreParts, verify
from agentformer.testing import make_entry
from agentformer.testing.case import Reference
from agentformer.types import AbsentDocument, Check, MemoryEntry, Scope, Source

DATA = b"The crane is blue. The pier is long."
DIGEST = hashlib.sha256(DATA).hexdigest()


class Memory:
    """A backend in memory, which has only the methods that verification calls, and offers their protocols."""

    announce = spaces = reembed = abandon_reembedding = prune_spaces = keep_vectors = None

    def __init__(self) -> None:
        self.entries: dict[str, MemoryEntry] = {}
        self.waiting: dict[str, int] = {}
        self.checks: list[Check] = []
        self.absent: list[AbsentDocument] = []
        self.embeds = True

    def store(self, *entries: MemoryEntry) -> None:
        self.entries |= {entry.id: entry for entry in entries}

    def verify(self, *, repair: bool) -> list[Check]:
        return self.checks

    @contextmanager
    def snapshot(self) -> Iterator[Memory]:
        yield self

    def namespaces(self) -> list[str]:
        return sorted({entry.namespace for entry in self.entries.values()})

    def get(self, ids: Sequence[str]) -> list[MemoryEntry]:
        return [self.entries[id] for id in ids if id in self.entries]

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        return [entry for entry in Reference(self.entries.values()).list(scope) if entry.id > after][:limit]

    def count(self, scope: Scope) -> int:
        return len(Reference(self.entries.values()).list(scope))

    def remove(self, ids: Sequence[str]) -> None:
        for id in ids:
            del self.entries[id]

    def absent_documents(self) -> Sequence[AbsentDocument]:
        return self.absent

    def forget_absent(self, documents: Sequence[AbsentDocument]) -> None:
        self.absent = [document for document in self.absent if document not in documents]

    def pending(self, scope: Scope) -> int:
        return self.waiting.get(scope.namespace, 0)

    def embed_pending(self) -> int:
        if self.embeds:
            self.waiting.clear()
        return sum(self.waiting.values())


def document(name: str = "a.txt", *, chunks: int = 2, status: str = "ready") -> list[MemoryEntry]:
    """Return a document of one page, with `chunks` chunks of one sentence."""
    text = DATA.decode()
    spans = [(0, 18), (19, 36)][:chunks]
    details = {"name": name, "sha256": DIGEST, "status": status, "pages": 1, "chunks": chunks}
    root = make_entry(name, kind="document", metadata=details)
    page = make_entry(text, kind="page", source=Source(root.id, name, 1, "1", 0, len(text)), parent_id=root.id)
    parts = [
        make_entry(text[start:end], kind="chunk", source=Source(root.id, name, 1, "1", start, end), parent_id=root.id)
        for start, end in spans
    ]
    return [root, page, *parts]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(verification, "_PAGE", 1)  # so that each listing and each look-up has several pages
    backend: Any = Memory()
    originals = Originals(tmp_path / "u", backend)
    put(originals, DATA)
    return StoreParts(backend, originals, tmp_path)


def put(originals: Originals, data: bytes) -> Path:
    path = originals.files.path(hashlib.sha256(data).hexdigest())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def no_reading(entry: MemoryEntry) -> Document:
    raise AssertionError(f"{entry.content} must not be ingested again")


def checked(store: Any, reread: Any = no_reading, *, repair: bool = False) -> dict[str, Check]:
    return {check.name: check for check in verify(store, reread, repair=repair)}


def test_sound_documents_have_no_findings(store: Any) -> None:
    store.backend.store(*document(), *document("b.txt"), *document("c.txt", status="failed")[:1], make_entry("a fact"))
    checks = checked(store)
    assert {name: check.looked_at for name, check in checks.items()} == {
        "documents": 3,
        "parts": 6,
        "originals": 2,
        "uploads": 1,
        "waiting": 10,
        "jobs": 0,
    }
    assert not any(check.found or check.findings for check in checks.values())


def test_each_problem_of_a_document_is_reported(store: Any) -> None:
    root, page, first, second = document()
    name = f"document {root.id} (a.txt)"
    for entries, findings in (
        ([root, page, first], [f"{name} has 1 chunks instead of 2"]),
        ([root, first, second], ["chunk", "chunk", f"{name} has 0 pages instead of 1"]),
        ([root, page, first, replace(second, content="The pier is lost.")], [f"chunk {second.id} differs"]),
        ([root, page, first, replace(second, source=replace(second.source, start=18))], [f"chunk {second.id} differs"]),
        ([root, page, first, replace(second, source=None)], [f"chunk {second.id} differs"]),
        ([root, page, page_of_another(page), first, second], [f"{name} has 2 pages instead of 1"]),
    ):
        store.backend.entries.clear()
        store.backend.store(*entries)
        check = checked(store)["documents"]
        assert (check.looked_at, check.found, check.mended) == (1, len(findings), 0)
        assert all(part in text for part, text in zip(findings, check.findings, strict=True)), check.findings


def page_of_another(page: MemoryEntry) -> MemoryEntry:
    assert page.source
    return replace(page, id=make_entry("").id, source=replace(page.source, page=2))


def test_a_damaged_document_is_ingested_again_once(store: Any) -> None:
    for result, mended, text in (
        (Document("a.txt", "default", "ready"), 2, "; ingested again from the original file"),
        (Document("a.txt", "default", "failed", "it is broken"), 0, "could not be read again: it is broken"),
        (StoreError("no space"), 0, "the document could not be ingested again: no space"),
    ):
        reread: list[str] = []

        def ingest(entry: MemoryEntry, result: Any = result, reread: list[str] = reread) -> Document:
            reread.append(entry.content)
            if isinstance(result, Exception):
                raise result
            return result

        root, _, first, second = document()
        store.backend.entries.clear()
        store.backend.store(root, first, second, *document("b.txt"))
        store.backend.remove([second.id])
        check = checked(store, ingest, repair=True)["documents"]
        assert (check.found, check.mended, reread) == (3, mended + (mended > 0), ["a.txt"])
        assert all(text in finding for finding in check.findings)


def test_a_document_without_its_original_is_not_ingested_again(store: Any) -> None:
    root, page, *_ = document()
    store.backend.store(root, page)
    path = store.originals.files.path(DIGEST)
    for damage, text in (
        (lambda: path.write_bytes(b"changed"), "its original file was changed after the upload"),
        (path.unlink, "its original file is not in "),
        (path.mkdir, "cannot read the original file "),
    ):
        damage()
        checks = checked(store, repair=True)
        assert (checks["originals"].found, checks["documents"].found, checks["documents"].mended) == (1, 1, 0)
        assert f"document {root.id} (a.txt): {text}" in checks["originals"].findings[0]


def test_parts_without_a_document_are_set_aside(store: Any) -> None:
    root, page, first, second = document()
    store.backend.store(page, first, second, *document("b.txt"))
    check = checked(store)["parts"]
    assert (check.looked_at, check.found) == (6, 3)
    assert f"page {page.id} belongs to a.txt, which does not exist" in "".join(check.findings)
    check = checked(store, repair=True)["parts"]
    assert (check.found, check.mended) == (3, 3)
    assert "; 3 set aside in damaged-" in check.findings[0]
    assert {entry.kind for entry in store.backend.get([root.id, page.id, first.id, second.id])} == set()
    assert len(store.backend.entries) == 4
    (file,) = store.index_dir.glob("damaged-*.jsonl")
    assert len(file.read_text().splitlines()) == 3


def test_a_part_in_another_namespace_than_its_document_is_reported(store: Any) -> None:
    root, page, first, second = document()
    store.backend.store(replace(root, namespace="work"), page, first, second)
    assert checked(store)["parts"].found == 3


def test_files_without_a_document_are_listed(store: Any) -> None:
    store.backend.store(*document())
    files = [put(store.originals, b"upload %d" % number) for number in range(20)]
    (Path(store.originals.files.place) / ".jobs").mkdir()
    for hidden in (".lock", ".upload-1", ".jobs/0"):
        (Path(store.originals.files.place) / hidden).touch()
    odd = Path(store.originals.files.place) / DIGEST[:2] / "notes.txt"
    odd.write_bytes(b"of somebody")
    put(store.originals, DATA).with_name(f".{DIGEST}.bin.1.2").touch()  # of a document that is stored
    files = sorted([*files, odd])
    size = sum(file.stat().st_size for file in files)
    check = checked(store)["uploads"]
    (note,) = check.findings
    assert (check.found, check.looked_at) == (0, 23)
    assert note.startswith(f"21 files ({size} bytes) in {Path(store.originals.files.place)} without a document: ")
    assert str(files[19].relative_to(Path(store.originals.files.place))) in note and ", and 1 more; ingest" in note
    files[0].unlink()
    (note,) = checked(store)["uploads"].findings
    assert note.startswith("20 files (") and "more" not in note


def test_files_of_removed_documents_and_of_uploads_are_not_listed(store: Any) -> None:
    other = Path(store.originals.files.place) / "ab" / f"{DIGEST}.bin"  # no original: it is in another folder
    other.parent.mkdir()
    other.write_bytes(b"1234")
    store.backend.absent = [AbsentDocument("1", DIGEST)]
    (note,) = checked(store)["uploads"].findings
    assert note.startswith(f"1 file (4 bytes) in {store.originals.files.place} without a document: ab/{DIGEST}.bin;")
    assert store.originals.files.path(DIGEST).exists()
    (note,) = checked(store, repair=True)["uploads"].findings
    assert note.startswith("1 file (4 bytes)") and other.exists()
    assert not store.originals.files.path(DIGEST).exists() and not store.backend.absent


def test_documents_that_cannot_be_read_are_reported_unless_the_backend_did(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.backend.store(*document())

    def damaged(*arguments: Any, **options: Any) -> Any:
        raise StoreDamaged("a row is damaged")

    monkeypatch.setattr(store.backend, "list", damaged)
    for mended, found, text in ((1, 1, "documents cannot be read: a row is damaged"), (0, 0, "were not checked")):
        store.backend.checks = [Check("records", "", 1, 1, mended)]
        checks = checked(store)
        assert checks["documents"].found == found and text in checks["documents"].findings[0]
        assert checks["uploads"].findings == ("uploaded files were not checked, because some documents cannot be read",)


def test_entries_without_vectors_are_embedded(store: Any) -> None:
    store.backend.store(make_entry("one"), make_entry("two", namespace="work"))
    store.backend.waiting = {"work": 1}
    check = checked(store)["waiting"]
    assert (check.looked_at, check.found, check.mended) == (2, 1, 0)
    assert check.findings[0].startswith("1 entries of namespace work have no vectors yet")
    store.backend.embeds = False
    assert checked(store, repair=True)["waiting"].mended == 0
    store.backend.embeds = True
    assert checked(store, repair=True)["waiting"].mended == 1


def test_the_database_of_jobs_is_checked(store: Any) -> None:
    path = store.index_dir / JOBS_FILE
    sqlite3.connect(path).close()
    assert (checked(store)["jobs"].looked_at, checked(store)["jobs"].found) == (0, 0)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE jobs (id)")
    connection.executemany("INSERT INTO jobs VALUES (?)", [("a" * 3000,), ("b" * 3000,)])
    connection.commit()
    connection.close()
    assert (checked(store)["jobs"].looked_at, checked(store)["jobs"].found) == (2, 0)
    path.write_bytes(b"no database" * 1000)
    (text,) = checked(store)["jobs"].findings
    assert text.startswith(f"{JOBS_FILE}: file is not a database")
