"""A backup: a copy of one memory, taken while it is in use, that opens like the memory itself.

    manifest.json   format, time and version, counts, and for each file its bytes and SHA-256
    indexes/        the records of every backend as of one moment each, and the hashes of keys
    uploads/        the originals of the documents in these records

Vector and word indexes are left out: they are rebuilt from the records. Uploads that wait as jobs are left out, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentformer._version import __version__
from agentformer.access.keys import FILE as KEYS_FILE
from agentformer.access.keys import OWNER_ONLY
from agentformer.archive.export import copy_original, write_manifest
from agentformer.archive.format import MANIFEST, digest_of, has_original, read_manifest
from agentformer.errors import InvalidInput, StoreError
from agentformer.rag.documents import Originals
from agentformer.records.files import delete, new_folder, write_atomically
from agentformer.types import MemoryBackend, Scope

FORMAT = "agentformer-backup-1"
INDEXES, UPLOADS = "indexes", "uploads"
_FILE = re.compile(r"(indexes|uploads)(/(?!\.{1,2}(/|$))[^/\0\\]{1,255}){1,8}")
_ATTEMPTS = 3  # to copy records and find the originals of all their documents
_PAGE = 500  # documents listed at a time
_LONGEST_MANIFEST = 256 << 20  # bytes


@dataclass(slots=True)
class BackedUp:
    """Counts of a backup."""

    namespaces: dict[str, int] = field(default_factory=dict)  # entries by namespace
    originals: int = 0
    missing_originals: list[str] = field(default_factory=list)  # ids of documents with a missing or damaged original
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The memory to back up. `open_copy` opens the records that were copied into a folder."""

    backend: MemoryBackend
    originals: Originals
    index_dir: Path
    open_copy: Callable[[Path], MemoryBackend]


def back_up(folder: Path, origin: Origin) -> BackedUp:
    """Copy a memory into a new folder while others use it.

    The backup has every entry that was acknowledged before the call, and none from after it. Raises `InvalidInput` for
    a folder that is not new, `StoreFull`, and `StoreDamaged` for records that cannot be read; then there is no folder.
    """
    with new_folder(folder, "backups/monday") as partial:
        done = _copy(partial, origin)
        _copy_keys(origin.index_dir / KEYS_FILE, partial / INDEXES / KEYS_FILE)
        files = {path: digest_of(partial, path) for path in sorted(_files(partial))}
        done.bytes = sum(digest["bytes"] for digest in files.values())
        manifest = {
            "format": FORMAT,
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": __version__,
            "namespaces": done.namespaces,
            "originals": done.originals,
            "missing_originals": sorted(done.missing_originals),
            "files": files,
        }
        write_manifest(partial, manifest)
    return done


def check_backup(folder: Path) -> list[str]:
    """Return the files of a backup that have changed, as messages. Raises `InvalidInput` if the folder is no backup."""
    manifest = _checked_manifest(folder)
    findings = []
    for path, expected in manifest["files"].items():
        if not _FILE.fullmatch(path) or not isinstance(expected, dict):
            findings.append(f"{path[:200]!r} is no file of a backup")
            continue
        try:
            if digest_of(folder, path) != expected:
                findings.append(f"{path} is not as it was taken (its checksum differs)")
        except (OSError, InvalidInput) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a plain file"
            findings.append(f"{path} cannot be read: {reason or error}")
    return findings


def _copy(partial: Path, origin: Origin) -> BackedUp:
    """Copy originals and records.

    An original is deleted with its document. So the present originals are copied first, then the records, then the
    originals that the records name and that are still missing. If one was deleted in between, the records are copied
    again: the new copy does not name it.
    """
    uploads = partial / UPLOADS
    uploads.mkdir()
    missing: set[str] = set()
    for _ in range(2):  # the second pass is short: it copies what was uploaded during the first
        digests = {digest for _, digest in _documents(origin.backend)}
        missing = {digest for digest in digests if not _copy_original(origin.originals, digest, uploads)}
    for _ in range(_ATTEMPTS):
        indexes = partial / INDEXES
        delete(indexes)
        indexes.mkdir()
        origin.backend.backup(indexes)
        done, named = _inspect_copy(indexes, origin, uploads)
        if {named[document_id] for document_id in done.missing_originals} <= missing:
            break
    needed = {*named.values()}
    for path in list(uploads.glob("*/*.bin")):
        if path.stem not in needed:  # its document was removed before the records were copied
            path.unlink()
    done.originals = sum(1 for _ in uploads.glob("*/*.bin"))
    return done


def _inspect_copy(indexes: Path, origin: Origin, uploads: Path) -> tuple[BackedUp, dict[str, str]]:
    """Count the copied records and copy the originals of their documents.

    Returns the counts, with the ids of documents without an original, and the digest of each document by id.
    """
    files = {*indexes.iterdir()}
    done, named = BackedUp(), {}
    copy = origin.open_copy(indexes)
    try:
        for namespace in copy.namespaces():
            done.namespaces[namespace] = copy.count(Scope(namespace, include_archived=True))
        for document_id, digest in _documents(copy):
            named[document_id] = digest
            if not _copy_original(origin.originals, digest, uploads):
                done.missing_originals.append(document_id)
    finally:
        copy.close()
    for path in {*indexes.iterdir()} - files:  # locks and other files of an open store
        delete(path)
    return done, named


def _documents(backend: MemoryBackend) -> Iterator[tuple[str, str]]:
    """Return the ids and digests of documents that have an original."""
    for namespace in backend.namespaces():
        scope, after = Scope(namespace, kinds=("document",), include_archived=True), ""
        while page := backend.list(scope, after=after, limit=_PAGE):
            yield from ((entry.id, entry.metadata["sha256"]) for entry in page if has_original(entry))
            after = page[-1].id


def _copy_original(originals: Originals, digest: str, uploads: Path) -> bool:
    """Copy an original if it is not copied yet. Return False if it is missing or damaged."""
    target = uploads / digest[:2] / f"{digest}.bin"
    return target.exists() or copy_original(originals, digest, target) is not None


def _copy_keys(source: Path, target: Path) -> None:
    try:
        data = source.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{source} cannot be read: {error.strerror or error}") from None
    write_atomically(target, data, mode=OWNER_ONLY)


def _files(folder: Path) -> Iterator[str]:
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _checked_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = read_manifest(folder, _LONGEST_MANIFEST)
    except FileNotFoundError:
        raise InvalidInput("folder", f"{folder} holds no {MANIFEST}; give a folder that `backup` has written") from None
    except InvalidInput:
        raise InvalidInput("folder", f"{MANIFEST} is not a plain file, or too long") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput("folder", f"{MANIFEST} cannot be read ({type(error).__name__})") from None
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") != FORMAT
        or not isinstance(manifest.get("files"), dict)
    ):
        raise InvalidInput("folder", f"{folder} is no backup of the format {FORMAT}")
    return manifest
