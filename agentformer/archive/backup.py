"""A backup: a copy of one memory, taken while it is used, that opens like the memory itself.

    manifest.json   format, when it was taken and by which version, counts, and of every file its bytes and SHA-256
    indexes/        the records of every backend as of one moment each, and the hashes of keys
    uploads/        the originals of the documents in these records

Indexes are not in it: they are made anew from the records. Nor are uploads that wait to be brought in (jobs).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentformer._version import __version__
from agentformer.access.keys import FILE as KEYS_FILE
from agentformer.access.keys import OWNER_ONLY
from agentformer.archive.folders import new_folder, written_file
from agentformer.archive.layout import BLOCK, MANIFEST, has_original, opened, whole
from agentformer.archive.originals import copied
from agentformer.errors import InvalidInput, StoreError
from agentformer.rag.documents import Originals
from agentformer.records.files import delete, write_atomically
from agentformer.types import MemoryBackend, Scope

FORMAT = "agentformer-backup-1"
INDEXES, UPLOADS = "indexes", "uploads"
_FILE = re.compile(r"(indexes|uploads)(/(?!\.{1,2}(/|$))[^/\0\\]{1,255}){1,8}")
_TRIES = 3  # until the originals of all documents in the records were there when they were copied
_PAGE = 500  # documents listed at a time
_LONGEST_MANIFEST = 256 << 20  # bytes


@dataclass(slots=True)
class BackedUp:
    """What a backup came to."""

    namespaces: dict[str, int] = field(default_factory=dict)  # entries by namespace
    originals: int = 0
    missing_originals: list[str] = field(
        default_factory=list
    )  # ids of documents whose original is not there or damaged
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """What is backed up. `open_copy` opens the records that were copied into a folder."""

    backend: MemoryBackend
    originals: Originals
    index_dir: Path
    open_copy: Callable[[Path], MemoryBackend]


def back_up(folder: Path, origin: Origin) -> BackedUp:
    """Copy a memory into a new folder, while others use it. Every entry that was acknowledged before this began is in
    it, and none that was after it ended. Raises `InvalidInput` for a folder that is not new, `StoreFull`, and
    `StoreDamaged` for records that cannot be read; then there is no folder."""
    with new_folder(folder, "backups/monday") as partial:
        done = _copied(partial, origin)
        _copy_keys(origin.index_dir / KEYS_FILE, partial / INDEXES / KEYS_FILE)
        files = {path: _told(partial, path) for path in sorted(_files(partial))}
        done.bytes = sum(told["bytes"] for told in files.values())
        manifest = {
            "format": FORMAT,
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": __version__,
            "namespaces": done.namespaces,
            "originals": done.originals,
            "missing_originals": sorted(done.missing_originals),
            "files": files,
        }
        text = json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True)
        with written_file(partial / MANIFEST) as file:
            file.write(f"{text}\n".encode())
    return done


def check_backup(folder: Path) -> list[str]:
    """What of a backup is not as it was taken, in words; nothing where all is. Raises `InvalidInput` for a folder that
    is no backup."""
    manifest = _manifest(folder)
    wrong = []
    for path, told in manifest["files"].items():
        if not _FILE.fullmatch(path) or not isinstance(told, dict):
            wrong.append(f"{path[:200]!r} is no file of a backup")
            continue
        try:
            if _told(folder, path) != told:
                wrong.append(f"{path} is not as it was taken (its checksum differs)")
        except (OSError, InvalidInput) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a plain file"
            wrong.append(f"{path} cannot be read: {reason or error}")
    return wrong


def _copied(partial: Path, origin: Origin) -> BackedUp:
    """Records and originals. An original goes when its document is removed, so those that are there now are copied
    first, then the records, then what these name and is still lacking. Where one went in between, records are copied
    anew, which do not name it."""
    uploads = partial / UPLOADS
    uploads.mkdir()
    lacking: set[str] = set()
    for _ in range(2):  # the second time what came during the first: so little is left to come before the records
        digests = {digest for _, digest in _documents(origin.backend)}
        lacking = {digest for digest in digests if not _copy_original(origin.originals, digest, uploads)}
    for _ in range(_TRIES):
        indexes = partial / INDEXES
        delete(indexes)
        indexes.mkdir()
        origin.backend.backup(indexes)
        done, named = _seen_in_copy(indexes, origin, uploads)
        if {named[document_id] for document_id in done.missing_originals} <= lacking:
            break
    wanted = {*named.values()}
    for path in list(uploads.glob("*/*.bin")):
        if path.stem not in wanted:  # its document was removed before the records were copied
            path.unlink()
    done.originals = sum(1 for _ in uploads.glob("*/*.bin"))
    return done


def _seen_in_copy(indexes: Path, origin: Origin, uploads: Path) -> tuple[BackedUp, dict[str, str]]:
    """What the copied records hold: counts, and the digests of their documents by id, each of which was copied or is
    told to be missing."""
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
    for path in {*indexes.iterdir()} - files:  # locks, and what else opening makes
        delete(path)
    return done, named


def _documents(backend: MemoryBackend) -> Iterator[tuple[str, str]]:
    """Ids of documents that have an original, and its digest."""
    for namespace in backend.namespaces():
        scope, after = Scope(namespace, kinds=("document",), include_archived=True), ""
        while page := backend.list(scope, after=after, limit=_PAGE):
            yield from ((entry.id, entry.metadata["sha256"]) for entry in page if has_original(entry))
            after = page[-1].id


def _copy_original(originals: Originals, digest: str, uploads: Path) -> bool:
    """Is the original in the backup now?"""
    target = uploads / digest[:2] / f"{digest}.bin"
    return target.exists() or copied(originals, digest, target) is not None


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


def _told(folder: Path, path: str) -> dict[str, Any]:
    digest, count = hashlib.sha256(), 0
    with opened(folder, path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            count += len(block)
    return {"bytes": count, "sha256": digest.hexdigest()}


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        with opened(folder, MANIFEST) as file:
            manifest = json.loads((whole(file, _LONGEST_MANIFEST) or b"").decode("utf-8"))
    except FileNotFoundError:
        raise InvalidInput("folder", f"{folder} holds no {MANIFEST}; give a folder that `backup` has written") from None
    except InvalidInput:
        raise InvalidInput("folder", f"{MANIFEST} is not a plain file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput("folder", f"{MANIFEST} cannot be read ({type(error).__name__})") from None
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") != FORMAT
        or not isinstance(manifest.get("files"), dict)
    ):
        raise InvalidInput("folder", f"{folder} is no backup of the format {FORMAT}")
    return manifest
