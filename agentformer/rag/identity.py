"""The identity of documents: which stored documents an upload replaces, and the name of the new document."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from agentformer.errors import Conflict, InvalidInput
from agentformer.rag.documents import Document
from agentformer.types import MemoryBackend, MemoryEntry, Scope

OnConflict = Literal["replace", "keep-both", "fail"]
_PAGE = 100  # documents read at a time


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The place from which a document comes. `path` is the absolute path of the file, and `root` is the absolute path
    of the folder that the user gave. Both paths use `/`. If the document was uploaded without a path, `path` is "". If
    the user gave no folder, `root` is ""."""

    path: str = ""
    root: str = ""

    @classmethod
    def of_file(cls, file: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Origin:
        """Return the origin of a file in the folder `root`. Links in the paths are resolved. Raises `InvalidInput` if a
        path cannot be resolved."""
        return cls(_absolute(file), _absolute(root) if root is not None else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The decision about an upload. `document` has the name and the origin under which the new document is stored.
    `former` are the stored documents that the upload replaces. If `same` is not None, this document has the same bytes
    already and no new document is stored. `expecting` contains all stored documents that the decision depends on, in
    the form that `MemoryBackend.store` accepts."""

    document: Document
    former: tuple[MemoryEntry, ...]
    same: MemoryEntry | None
    expecting: Sequence[tuple[Scope, Collection[str]]]

    @property
    def replaced(self) -> str:
        """The id of the former version, or "" if no document is replaced."""
        return self.former[0].id if self.former else ""

    @property
    def replacing(self) -> list[list[str]]:
        """The ids of the former versions, in the form that `MemoryBackend.store` accepts."""
        return [[entry.id for entry in self.former]]


def place(backend: MemoryBackend, document: Document, on_conflict: OnConflict) -> Placement:
    """Decide what an upload replaces, and under which name the new document is stored.

    A document with an origin is identified by the path of the origin. A document without an origin is identified by its
    name among the documents without an origin. A stored document of an older version has no field `origin`; for an
    upload with an origin, it counts as the same document only if it has the same bytes. Raises `Conflict` if
    `on_conflict` is `fail` and the stored document has other bytes.
    """
    stored = _Stored(backend, document.namespace)
    equal = stored.select(sha256=document.sha256)
    same = next((entry for entry in equal if entry.metadata["status"] == "ready"), None)
    if document.origin:
        own = stored.select(origin=document.origin) + [entry for entry in equal if "origin" not in entry.metadata]
    else:
        own = [entry for entry in stored.select(name=document.name) if not entry.metadata.get("origin")]
    changed = [entry for entry in own if entry.metadata["sha256"] != document.sha256]
    if on_conflict != "replace" and any(entry.metadata["status"] == "ready" for entry in changed):
        if on_conflict == "fail":
            raise Conflict(
                f"the document {changed[0].content[:200]!r} ({changed[0].id}) is stored with other content; "
                "upload with on_conflict=replace or keep-both, or remove the document first"
            )
        if same is None:
            copy = dataclasses.replace(document, origin="", root="")
            own, changed = [], []
            document = stored.named(copy, _numbered(document.name), keep=equal)
        else:
            changed = []
    elif document.origin and same is None:
        document = stored.named(document, _with_folders(document), keep=own)
    former = changed if same is not None else [*changed, *(entry for entry in equal if entry not in changed)]
    return Placement(document, tuple(former), same, stored.seen)


class _Stored:
    """Reads the documents of a namespace. `seen` contains each scope that was read, with the ids in this scope."""

    def __init__(self, backend: MemoryBackend, namespace: str) -> None:
        self._backend = backend
        self._namespace = namespace
        self.seen: list[tuple[Scope, Collection[str]]] = []

    def select(self, **metadata: str) -> list[MemoryEntry]:
        """Return the documents with these metadata."""
        scope = Scope(self._namespace, kinds=("document",), metadata=metadata)
        entries: list[MemoryEntry] = []
        while page := self._backend.list(scope, after=entries[-1].id if entries else "", limit=_PAGE):
            entries += page
        self.seen.append((scope, [entry.id for entry in entries]))
        return entries

    def named(self, document: Document, names: Iterator[str], keep: Sequence[MemoryEntry]) -> Document:
        """Return the document with the first of `names` that no stored document has. The names of the documents in
        `keep` count as free, because the upload replaces these documents."""
        own = {entry.id for entry in keep}
        for name in names:
            if own.issuperset(entry.id for entry in self.select(name=name)):
                return dataclasses.replace(document, name=name)
        raise AssertionError("the names end only if all numbers are used")


def origin_folders(document: Document) -> list[str]:
    """Return the folders of the origin of a document that are not a part of its name, the innermost folder last."""
    path = PurePosixPath(document.origin)
    outer = document.origin.removesuffix(f"/{document.name}")
    folder = PurePosixPath(outer) if outer != document.origin else path.parent
    return [part for part in folder.parts if part.strip("/")]


def numbered(name: str, number: int) -> str:
    """Return the name with a number before the suffix, such as `report (2).pdf`. The suffix stays last, because the
    type of a file can follow from the suffix."""
    path = PurePosixPath(name)
    return f"{name.removesuffix(path.suffix)} ({number}){path.suffix}"


def checked_on_conflict(value: str) -> OnConflict:
    """Return the value of `on_conflict`. Raises `InvalidInput` for an unknown value."""
    for choice in get_args(OnConflict):
        if value == choice:
            return choice  # type: ignore[no-any-return]
    raise InvalidInput("on_conflict", f"must be replace, keep-both or fail, got {value!r:.80}")


def _numbered(name: str) -> Iterator[str]:
    number = 2
    while True:
        yield numbered(name, number)
        number += 1


def _with_folders(document: Document) -> Iterator[str]:
    """Yield the name of the document, then the name with more and more of the folders of its origin before it, and then
    the name with numbers."""
    folders = origin_folders(document)
    for count in range(len(folders) + 1):
        yield "/".join([*folders[len(folders) - count :], document.name])
    yield from _numbered(document.name)


def _absolute(path: str | os.PathLike[str]) -> str:
    try:
        text = Path(path).resolve().as_posix()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput("file", f"{str(path)[:200]!r} cannot be resolved: {error}") from None
    return text.encode("utf-8", "backslashreplace").decode()
