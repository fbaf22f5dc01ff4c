"""The preparation of an upload: read the file, and decide which document is replaced and which name the new document
gets."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from agentformer.errors import Conflict, InvalidInput
from agentformer.rag.documents import Document, document_of
from agentformer.records.filters import json_equal
from agentformer.records.integrity.files import kind_of, open_regular_file
from agentformer.search.reading import all_entries
from agentformer.types import DEFAULT_NAMESPACE, NOBODY, MemoryBackend, MemoryEntry, Scope, StoreCheck, owned_by

OnConflict = Literal["replace", "keep-both", "fail"]
_MAX_NAME = 255  # code points of a name; the limit of common file systems
_MAX_SUFFIX = 20  # code points of a suffix that a shortened name keeps


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The place from which a document comes. `path` is the absolute path of the file, or its URL, and `root` is the
    absolute path of the folder that the user gave. Both paths use `/`. If the document was uploaded without a path,
    `path` is "". If the user gave no folder, `root` is ""."""

    path: str = ""
    root: str = ""

    @classmethod
    def of_file(cls, file: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Origin:
        """Return the origin of a file that belongs to the folder `root`. Links are resolved. Raises `InvalidInput` if a
        path cannot be resolved."""
        return cls(_absolute(file), _absolute(root) if root is not None else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The decision about an upload. `document` has the name and the origin under which the new document is stored.
    `former` contains the stored documents that the new document replaces: normally one or none. If `same` is not None,
    the document `same` is stored with the same bytes already, and the file is not read again; `kept` then contains
    former versions that an interrupted upload has not hidden. If `new_metadata` is also True, the metadata of the
    upload replace the metadata of `same`. The caller passes `check` to `MemoryBackend.store`. The check raises
    `Conflict` if another caller has changed the documents on which the decision depends."""

    document: Document
    former: tuple[MemoryEntry, ...]
    same: MemoryEntry | None
    check: StoreCheck
    new_metadata: bool = False
    kept: tuple[MemoryEntry, ...] = ()  # former versions that the caller hides after the new one is stored

    @property
    def replaced(self) -> str:
        """The id of the former version, or "" if no document is replaced."""
        return self.former[0].id if self.former else ""

    @property
    def replacing(self) -> list[list[str]]:
        """The ids of the former versions that the new one replaces at once, as the argument `replacing` of
        `MemoryBackend.store`: a list of one list."""
        return [[entry.id for entry in self.former if entry not in self.kept]]


class Refused(Conflict):
    """Raised if `on_conflict` is `fail` and the document is stored with other content or other metadata. Another
    attempt would be refused, too."""


def identity(document: Document) -> tuple[str, str, str, str]:
    """Return the key of a document: (namespace, user, path of the origin, name). The user is "" if the document belongs
    to no user, and the name is "" if there is a path."""
    name = "" if document.origin else document.name
    return document.namespace, document.user_id or NOBODY, document.origin, name


def unchanged(seen: Sequence[tuple[Scope, Collection[str]]]) -> StoreCheck:
    """Return a check for `MemoryBackend.store`. `seen` contains scopes, each with the ids that were read in it. The
    check raises `Conflict` if a scope no longer contains exactly these ids."""

    def check(ids: Callable[[Scope], Collection[str]]) -> None:
        for scope, expected in seen:
            if set(ids(scope)) != set(expected):
                raise Conflict("another caller has stored or removed this document in the meantime; upload it again")

    return check


def place(
    backend: MemoryBackend, document: Document, on_conflict: OnConflict, *, given_metadata: bool = False
) -> Placement:
    """Decide which stored document an upload replaces, and under which name the new document is stored. A document with
    an origin is identified by the origin. A document without an origin is identified by its name. Documents of other
    users are not looked at, and those of no user only if the upload belongs to no user. `given_metadata` is
    True if the metadata of `document` come from the caller. If `on_conflict` is `fail`, a stored document with other
    bytes, or with other metadata than the caller gave, raises `Refused`."""
    stored = _Stored(backend, document)
    own = stored.of_origin() if document.origin else stored.of_name(document.name)
    same = stored.with_same_bytes(own)
    changed = [entry for entry in own if entry.metadata["status"] == "ready"] if same is None else []
    if on_conflict == "keep-both" and same is None:  # a stored file without usable text is kept, too
        changed = [entry for entry in own if entry.metadata["sha256"] != document.sha256]
    if changed and on_conflict == "fail":
        raise Refused(
            f"the document {changed[0].content[:200]!r} ({changed[0].id}) is stored with other content; "
            "upload with on_conflict=replace or keep-both, or remove the document first"
        )
    if changed and on_conflict == "keep-both":
        document, own = stored.copy()
        same = stored.with_same_bytes(own)
    elif document.origin and same is None:
        name = own[0].metadata["name"] if own else stored.free_name()  # a new version keeps the name
        document = dataclasses.replace(document, name=name)
    check = unchanged(stored.seen)
    if same is None:
        if own and not given_metadata:  # a new version keeps the metadata
            document = dataclasses.replace(document, metadata=own[0].metadata.get("given", {}))
        return Placement(document, tuple(own), None, check)
    if not given_metadata or json_equal(same.metadata["given"], {**document.metadata}):
        return Placement(document, (), same, check, kept=tuple(entry for entry in own if entry.id != same.id))
    if on_conflict == "fail":
        raise Refused(
            f"the document {same.content[:200]!r} ({same.id}) is stored with other metadata; "
            "upload with on_conflict=replace, or upload without metadata"
        )
    return Placement(document, (same,), same, check, new_metadata=True)


def place_renamed(backend: MemoryBackend, former: MemoryEntry, document: Document) -> Placement:
    """Return the placement that renames the stored document `former`. `document` has the new name and origin, and the
    same bytes. Raises `Conflict` if a document with the new origin is stored."""
    stored = _Stored(backend, document)
    if stored.of_origin():
        raise Conflict(f"the document {document.name[:200]!r} is stored already; sync again")
    renamed = dataclasses.replace(document, name=stored.free_name(), metadata=former.metadata["given"])
    path, owner = {"origin": former.metadata["origin"]}, owned_by(document.user_id)
    own = Scope(document.namespace, kinds=("document",), metadata=path, **owner)
    check = unchanged([*stored.seen, (own, [former.id])])
    return Placement(renamed, (former,), former, check, new_metadata=True)


def place_again(backend: MemoryBackend, entry: MemoryEntry) -> Placement:
    """Return the placement of a new version of the stored document `entry` with the same bytes. Raises `Conflict` if
    the document is no longer stored."""
    document = document_of(entry)
    stored = _Stored(backend, document)
    if entry.id not in {same.id for same in stored.documents(sha256=document.sha256)}:
        raise Conflict(f"the document {document.name[:200]!r} was changed in the meantime; try again")
    return Placement(document, (entry,), None, unchanged(stored.seen))


def with_origin(backend: MemoryBackend, same: MemoryEntry, document: Document) -> MemoryEntry:
    """Add values of the upload to the stored document `same`: the folder of a sync, the stamp of the file (see
    `folder_sync`), and the origin if an older version of agentformer stored the document without an origin. Return the
    stored document. Raises `Conflict` if another caller has changed the stored document."""
    known = {"origin": document.origin, "root": document.root} if "origin" not in same.metadata else {}
    if document.stamp:
        known |= {"root": document.root, "stamp": document.stamp}
    if not document.origin or known.items() <= same.metadata.items():
        return same
    return backend.update(same.id, {"metadata": {**same.metadata, **known}}, same.version)


class _Stored:
    """Reads the stored documents that an upload may replace: those of the same user, or of no user. `seen` has each
    scope that was read, with the ids of the documents that were found in it."""

    def __init__(self, backend: MemoryBackend, document: Document) -> None:
        self._backend = backend
        self._document = document
        self.seen: list[tuple[Scope, Collection[str]]] = []

    def of_origin(self) -> list[MemoryEntry]:
        """Return the stored documents that come from the path of the upload. An older version of agentformer stored no
        paths. Therefore, if no document has the path, return a document of an older version with the same bytes and
        file name."""
        document = self._document
        if entries := self.documents(origin=document.origin):
            return entries
        names = {PurePosixPath(path).name for path in (document.origin, document.name)}
        equal = (entry for entry in self.documents(sha256=document.sha256) if "origin" not in entry.metadata)
        return [entry for entry in equal if PurePosixPath(entry.metadata["name"]).name in names][:1]

    def of_name(self, name: str) -> list[MemoryEntry]:
        """Return the documents that have this name and no origin."""
        return [entry for entry in self.documents(name=name) if not entry.metadata.get("origin")]

    def with_same_bytes(self, entries: Sequence[MemoryEntry]) -> MemoryEntry | None:
        """Return the first of the entries that is usable and has the bytes of the upload, or None."""
        digest = self._document.sha256
        same = (e for e in entries if e.metadata["sha256"] == digest and e.metadata["status"] == "ready")
        return next(same, None)

    def copy(self) -> tuple[Document, list[MemoryEntry]]:
        """Return two values for an upload that keeps the former version: the new document, and the stored documents
        that have its name and its bytes. The new document has no origin. Its name has a number, such as "report
        (2).pdf": the first number for which the name is free or belongs to a document with the same bytes."""
        for name in _numbered(self._document.name):
            stored = self.documents(archived=True, name=name)
            copies = [entry for entry in stored if not entry.metadata.get("origin") and entry.archived_at is None]
            equal = [entry for entry in copies if entry.metadata["sha256"] == self._document.sha256]
            if equal or not stored:
                return dataclasses.replace(self._document, name=name, origin="", root=""), equal
        raise AssertionError("the loop ends only with a free name")

    def free_name(self) -> str:
        """Return a name for the upload that no stored document has: the name of the upload if it is free, or else this
        name after one or more folders of the origin ("2025/report.pdf"), or with a number ("report (2).pdf")."""
        for name in _with_folders(self._document):
            if not self.documents(archived=True, name=name):
                return name
        raise AssertionError("the loop ends only with a free name")

    def documents(self, *, archived: bool = False, **metadata: str) -> list[MemoryEntry]:
        """Return the documents of the user in the namespace with these metadata values. With `archived`, archived
        documents are included. A new name must differ from theirs, because their deletion may be undone."""
        place = {"include_archived": archived, **owned_by(self._document.user_id)}
        scope = Scope(self._document.namespace, kinds=("document",), metadata=metadata, **place)
        entries = [*all_entries(self._backend, scope)]
        self.seen.append((scope, [entry.id for entry in entries]))
        return entries


def numbered(name: str, number: int) -> str:
    """Return the name with a number, such as `report (2).pdf`. The suffix stays at the end, because it can show the
    type."""
    path = PurePosixPath(name)
    return f"{name.removesuffix(path.suffix)} ({number}){path.suffix}"


def checked_on_conflict(value: str) -> OnConflict:
    """Return the value of `on_conflict`. Raises `InvalidInput` for an unknown value."""
    for choice in get_args(OnConflict):
        if value == choice:
            return choice  # type: ignore[no-any-return]
    raise InvalidInput("on_conflict", f"must be 'replace', 'keep-both' or 'fail', got {value!r:.80}")


def _numbered(name: str) -> Iterator[str]:
    return (numbered(name, number) for number in itertools.count(2))


def _with_folders(document: Document) -> Iterator[str]:
    """Yield possible names of the document: its name, then "folder/name" with one, two and more folders of its origin,
    and then its name with numbers."""
    path = PurePosixPath(document.origin)
    outer = document.origin.removesuffix(f"/{document.name}")
    folders = path.parent.parts if outer == document.origin else PurePosixPath(outer).parts
    folders = tuple(folder for folder in folders if folder.strip("/"))
    for count in range(len(folders) + 1):
        yield "/".join([*folders[len(folders) - count :], document.name])
    yield from _numbered(document.name)


def _absolute(path: str | os.PathLike[str]) -> str:
    try:
        text = Path(path).resolve().as_posix()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput("file", f"{str(path)[:200]!r} cannot be resolved: {error}") from None
    return text.encode("utf-8", "backslashreplace").decode()


def read_upload(file: Any, name: str, origin: Origin | None, limit: int) -> tuple[bytes, Document]:
    """Return the bytes of a file to upload, and a `Document` with its name, origin, SHA-256 and size. If `name` is "",
    the name is taken from the path of the file. If `origin` is None, the origin is taken from this path. Raises
    `InvalidInput` if the file cannot be read, or if the file has more than `limit` bytes."""
    data, file_name = _read_file(file, limit)
    origin = origin or _origin_of(file, name)
    return data, Document(
        name=safe_name(name or file_name),
        namespace=DEFAULT_NAMESPACE,
        status="ready",
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        origin=origin.path,
        root=origin.root,
    )


def _read_file(file: Any, limit: int) -> tuple[bytes, str]:
    """Return the bytes and the name of a file to upload. If `file` is bytes, the name is "". Raises `InvalidInput` if
    the file cannot be read, or if the file has more than `limit` bytes."""
    data: bytes | None
    if isinstance(file, (bytes, bytearray, memoryview)):
        data, name = bytes(file), ""
    elif isinstance(file, (str, os.PathLike)):
        data, name = _read_path(Path(file), limit), Path(file).name
    else:
        try:
            data = file.read(limit + 1)
        except (AttributeError, UnicodeDecodeError):
            data = None
        label = getattr(file, "name", "")
        name = Path(label).name if isinstance(label, str) else ""
    if not isinstance(data, bytes):
        raise InvalidInput("file", "must be a path, bytes, or a file opened in binary mode ('rb')")
    _check_size(len(data), limit)
    return data, name


def _origin_of(file: Any, name: str) -> Origin:
    """Return the origin of a file to upload. The origin is empty for bytes, and for an open file if the caller gives a
    `name`."""
    if isinstance(file, (str, os.PathLike)):
        return Origin.of_file(file)
    path = getattr(file, "name", None)
    try:
        if name or not isinstance(path, str) or not os.path.samestat(Path(path).stat(), os.fstat(file.fileno())):
            return Origin()
    except (AttributeError, OSError, ValueError):  # not a file of the file system
        return Origin()
    return Origin.of_file(path)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidInput("file", f"has more than {limit} bytes; split the file, or raise the setting max_file_bytes")


def _read_path(path: Path, limit: int) -> bytes:
    kind = kind_of(path, "file")
    if kind == "folder":
        raise InvalidInput("file", f"{path} is a folder; give a file (`agentformer ingest` accepts folders)")
    if kind == "other":
        raise InvalidInput("file", f"{path} is a device or a pipe; give a regular file")
    try:
        with open_regular_file(path) as file:
            _check_size(os.fstat(file.fileno()).st_size, limit)  # before the file is read
            return file.read(limit + 1)  # a file that grows meanwhile is refused by the caller
    except FileNotFoundError:
        raise InvalidInput("file", f"{path} does not exist; check the path") from None
    except PermissionError:
        raise InvalidInput("file", f"{path} cannot be read: permission denied; allow this process to read it") from None
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput("file", f"{str(path)[:200]!r} cannot be read: {error}") from None


def safe_name(name: Any) -> str:
    """Return the name of a document whose upload has the given name. The name is never used as a path. The result has
    at most 255 characters, all printable, without parts such as `..`, empty parts, backslashes, or spaces at the ends
    of parts. If the given name had to be changed, ` ~` and 8 digits of its hash are put before the suffix, so that
    different names remain different. Raises `InvalidInput` if no name is left."""
    if not isinstance(name, str):
        raise InvalidInput("name", f"must be a string, got {type(name).__name__}")
    with suppress(UnicodeError):  # the bytes of a file name in UTF-8, where the locale of this process is another one
        name = name.encode("utf-8", "surrogateescape").decode()
    printable = "".join(ch for ch in name.replace("\\", "/") if ch.isprintable())
    parts = [part.strip() for part in printable.split("/") if part.strip() not in ("", ".", "..")]
    if not parts:
        raise InvalidInput("name", "is missing; give the document a name, such as report.pdf")
    safe = "/".join(parts)
    return safe if safe == name and len(name) <= _MAX_NAME else _marked(safe, name)


def _marked(safe: str, name: str) -> str:
    """Return the name `safe` with a part of the hash of the given name `name` before its suffix. If the result would be
    too long, characters at the beginning are left out."""
    suffix = PurePosixPath(safe).suffix
    if len(suffix) > _MAX_SUFFIX:
        suffix = ""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    end = f" ~{digest}{suffix}"
    stem = safe.removesuffix(suffix)
    if len(stem) > (room := _MAX_NAME - len(end)):
        stem = stem[-room:].lstrip("/. ")
    return f"{stem}{end}".strip()
