"""The synchronization of a folder, which keeps the stored documents of the folder equal to its files.

A document belongs to a folder if it was stored with this folder as its root. Each document stores a stamp of its file
(size, time of the last change, inode number). A file with an equal stamp is not read again. Each file is stored in a
transaction of its own, so that the next sync continues after an interruption.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple
from unicodedata import normalize

from agentformer.ahead import AHEAD_BYTES, one_ahead
from agentformer.errors import AgentFormerError, Conflict, InvalidInput, NotFound, SpaceMismatch, StoreError
from agentformer.rag.document_store import DocumentStore, Upload
from agentformer.rag.documents import Document
from agentformer.rag.folder_files import FolderFile, FolderFiles, Problem, SizeLimits, Unread, encodable, read_file
from agentformer.rag.uploads import Origin, safe_name
from agentformer.records.integrity.files import kind_of, real_path
from agentformer.types import MemoryEntry, Scope, Shown, Stopped, owned_by

SyncProgress = Callable[[int, int], None]  # number of handled files, number of all files
_UNUSABLE = ("failed", "encrypted", "no_text", "garbled")


@dataclasses.dataclass(frozen=True, slots=True)
class SyncReport:
    """The result of a sync. The names are paths in the folder, with `/`. `unchanged` is a number of files. `left` is
    the number of files that were not handled in time; the next sync handles them, and removes the documents of missing
    files."""

    folder: str
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    renamed: Annotated[tuple[tuple[str, str], ...], Shown("Pairs of the former and the new name.")] = ()
    removed: tuple[str, ...] = ()
    unchanged: int = 0
    skipped: Annotated[tuple[Problem, ...], Shown("Files that are left out, such as binary files.")] = ()
    failed: Annotated[tuple[Problem, ...], Shown("Files that cannot be read or have no usable text.")] = ()
    left: Annotated[int, Shown("The number of files that remain for the next request.")] = 0
    seconds: float = 0.0


class _Known(NamedTuple):
    """The values of a stored document that a sync needs. Other values are not kept, so that a sync of a million
    documents fits in memory."""

    id: str
    stamp: str
    digest: bytes
    size: int
    problem: str  # the reason why the document has no usable text, or ""

    @classmethod
    def of(cls, entry: MemoryEntry) -> _Known:
        """Return the values that a sync needs from `entry`, the entry of a stored document."""
        values = entry.metadata
        problem = values["reason"] or values["status"] if values["status"] in _UNUSABLE else ""
        return cls(entry.id, values.get("stamp", ""), bytes.fromhex(values["sha256"]), values["bytes"], problem)


class FolderSync:
    """One sync of the folder `root` with the documents of a namespace in `store`: those of one user, or of no user.
    `metadata` is stored with new and changed documents; if it is None, changed documents keep their metadata. The
    folders `own` are not read."""

    def __init__(
        self,
        store: DocumentStore,
        root: Path,
        namespace: str,
        metadata: Mapping[str, Any] | None,
        limits: SizeLimits,
        own: Iterable[Path] = (),
        user_id: str | None = None,
    ) -> None:
        self._store = store
        self._origin = Origin.of_file(root).path
        self._root = real_path(root, "folder")  # differs from the origin if the path is not UTF-8
        self._namespace = namespace
        self._user_id = user_id
        self._metadata = metadata
        self._limits = limits
        self._listing = FolderFiles(self._root, limits.file, own)
        self._lists: dict[str, list[Any]] = {"added": [], "changed": [], "renamed": [], "removed": []}
        self._unchanged = 0

    @property
    def scope(self) -> Scope:
        """The scope that contains the stored documents of the folder."""
        owner = owned_by(self._user_id)
        return Scope(self._namespace, kinds=("document",), metadata={"root": self._origin}, **owner)

    def run(
        self,
        documents: Iterable[MemoryEntry],
        *,
        delete: bool = False,
        progress: SyncProgress | None = None,
        seconds: float = math.inf,
    ) -> SyncReport:
        """Store new and changed files, rename moved ones, and remove the documents of files that are gone. `documents`
        are all stored documents of `scope`. `progress(handled, total)` is called with numbers of files. After
        `seconds`, no further file is handled. Raises `InvalidInput` if the folder is missing, or if more than half of
        its files are gone. If `delete` is true, these two cases are no errors, and the documents are removed."""
        started = time.monotonic()
        gone = {entry.metadata["origin"]: _Known.of(entry) for entry in documents}
        number_stored = len(gone)
        work = self._work(gone, delete=delete)
        if not self._listing.complete:
            gone.clear()  # a file in a folder that could not be listed may still exist
        moved = _by_content(gone)
        self._refuse_loss(gone, number_stored, work, delete=delete)
        done = 0
        prepare = partial(self._prepare, moved=moved)
        with closing(one_ahead(work, prepare, lambda item: item[0].size <= AHEAD_BYTES)) as prepared:
            for (file, known), upload in prepared:
                if progress:
                    progress(done, len(work))
                if time.monotonic() - started >= seconds:
                    break
                if former := self._handle(file, known, upload, moved):
                    del gone[former]
                done += 1
            else:
                for origin, known in gone.items():
                    self._remove(origin, known)
        if progress:
            progress(done, len(work))
        return self._report(left=len(work) - done, seconds=time.monotonic() - started)

    def _report(self, *, left: int, seconds: float) -> SyncReport:
        lists: dict[str, Any] = {name: tuple(items) for name, items in self._lists.items()}
        return SyncReport(
            self._origin,
            unchanged=self._unchanged,
            skipped=_shown(self._listing.skipped),
            failed=_shown(self._listing.failed),
            left=left,
            seconds=seconds,
            **lists,
        )

    def _work(self, stored: dict[str, _Known], *, delete: bool) -> list[tuple[FolderFile, _Known | None]]:
        """Return the new and the changed files, each with its stored document (None for a new file). Remove the
        documents of all existing files from the dictionary `stored`, so that it contains only documents without a file
        afterwards. If `delete` is true, a missing folder counts as empty."""
        work: list[tuple[FolderFile, _Known | None]] = []
        if delete and not kind_of(self._root, "folder"):
            return work
        for file in self._listing.files():
            known = stored.pop(_origin_of(file), None)
            if known is None or not file.stamp or known.stamp != file.stamp:
                work.append((file, known))
            elif known.problem:
                self._listing.failed.append(Problem(file.name, known.problem))
            else:
                self._unchanged += 1
        return work

    def _refuse_loss(
        self,
        gone: Mapping[str, _Known],
        number_stored: int,
        work: Iterable[tuple[FolderFile, _Known | None]],
        *,
        delete: bool,
    ) -> None:
        """Raise `InvalidInput` if more than half of the files are gone, unless `delete` is true. If a new file in
        `work` has the same size as a missing file, the missing file counts as moved and not as gone."""
        new = Counter(file.size for file, known in work if known is None)
        moved = new & Counter(known.size for known in gone.values())
        lost = len(gone) - moved.total()
        if not delete and lost > 1 and lost * 2 > number_stored:
            raise InvalidInput(
                "folder",
                f"{lost} of {number_stored} files of {self._origin} are gone, so nothing was changed; check that the "
                "folder is complete, or allow the removal of their documents with --delete (`delete=True`)",
            )

    def _prepare(
        self, item: tuple[FolderFile, _Known | None], stopped: Stopped | None, moved: Mapping[tuple[bytes, str], Any]
    ) -> Upload:
        """Return the upload of a file. With `stopped`, its text is read, too, if the file was not moved."""
        file, known = item
        data, stamp = read_file(file, self._limits, self._store.is_text)
        document = self._document(file, data, stamp)
        if known is None and _content_of(document, file) in moved:
            stopped = None
        return self._store.prepare_bytes(data, document, given_metadata=self._metadata is not None, stopped=stopped)

    def _handle(
        self,
        file: FolderFile,
        known: _Known | None,
        prepared: Callable[[], Upload],
        moved: dict[tuple[bytes, str], list[tuple[str, _Known]]],
    ) -> str:
        """Store one file. `known` is its stored document, or None for a new file. `moved` are the documents whose files
        are gone, as `_by_content` returns them. If a new file has the bytes of one of them, rename this document, and
        return its former path. Otherwise, return ""."""
        try:
            upload = prepared()
            candidates = moved.get(_content_of(upload.document, file), []) if known is None else []
            if candidates:
                origin, former = candidates.pop()
                self._store.rename(upload.data, former.id, upload.document)
                self._lists["renamed"].append((self._name_of(origin), encodable(file.name)))
                return origin
            self._put(file, known, upload)
        except Unread as reason:
            self._listing.skipped.append(Problem(file.name, str(reason)))
            if known is not None:
                self._remove(_origin_of(file), known)
        except (SpaceMismatch, StoreError):
            raise  # no file can be stored
        except AgentFormerError as error:
            self._listing.failed.append(Problem(file.name, str(error).removeprefix("file ")))
        return ""

    def _document(self, file: FolderFile, data: bytes, stamp: str) -> Document:
        name = normalize("NFC", file.name)
        return Document(
            name=name if encodable(name) == name else safe_name(name),  # a name that is not UTF-8 is cleaned
            namespace=self._namespace,
            user_id=self._user_id,
            status="ready",
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            metadata=self._metadata or {},
            origin=_origin_of(file),
            root=self._origin,
            stamp=stamp,
        )

    def _put(self, file: FolderFile, known: _Known | None, upload: Upload) -> None:
        result = self._store.put(upload)
        if result.status in _UNUSABLE:
            self._listing.failed.append(Problem(file.name, result.reason))
        elif result.unchanged:
            self._unchanged += 1
        else:
            self._lists["added" if known is None else "changed"].append(encodable(file.name))

    def _remove(self, origin: str, known: _Known) -> None:
        try:
            self._store.remove(known.id, namespace=self._namespace)
        except (NotFound, Conflict):  # another caller has removed or replaced it
            return
        self._lists["removed"].append(self._name_of(origin))

    def _name_of(self, origin: str) -> str:
        return origin.removeprefix(self._origin).lstrip("/")


def _content_of(document: Document, file: FolderFile) -> tuple[bytes, str]:
    """Return the key of a file in the dictionary that `_by_content` returns."""
    return bytes.fromhex(document.sha256), file.path.suffix


def _origin_of(file: FolderFile) -> str:
    return encodable(f"{file.root}/{file.name}")


def _shown(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(Problem(encodable(name), reason) for name, reason in problems)


def _by_content(stored: Mapping[str, _Known]) -> dict[tuple[bytes, str], list[tuple[str, _Known]]]:
    """Return a dictionary for recognising moved files: (SHA-256 of the bytes, extension of the file) -> list of (path,
    document). Documents without usable text are left out."""
    found: dict[tuple[bytes, str], list[tuple[str, _Known]]] = {}
    for origin, known in stored.items():
        if not known.problem:
            found.setdefault((known.digest, PurePosixPath(origin).suffix), []).append((origin, known))
    return found
