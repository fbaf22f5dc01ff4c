"""Back up a memory while it is in use. A backup is a folder that can be opened like the memory.

    manifest.json   format, time and version, counts, and for each file its length and SHA-256
    indexes/        a copy of the database of each backend, as of one moment, and the hashes of the API keys
    uploads/        the original files of the documents in these databases

A backup contains no vector index and no word index, because these indexes are rebuilt from the database. Uploaded files
that have not been ingested yet are not in the backup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentformer._version import __version__
from agentformer.access.key_storage import FILE as KEYS_FILE
from agentformer.access.key_storage import OWNER_ONLY
from agentformer.access.keys import KeyStore
from agentformer.archive.export import copy_original, write_manifest
from agentformer.archive.format import MANIFEST, digest_of, entries_in, has_original, read_manifest
from agentformer.errors import InvalidInput, store_failure
from agentformer.rag.originals import Originals
from agentformer.rag.ownership import claim, owner_of_copy, settle
from agentformer.records.integrity.files import delete, new_folder, write_atomically
from agentformer.records.offers import required
from agentformer.settings.access import make_folder
from agentformer.types import BackupStore, MemoryBackend, OriginalsStore, Scope

FORMAT = "agentformer-backup-1"
INDEXES, UPLOADS = "indexes", "uploads"
_FILE = re.compile(r"(indexes|uploads)(/(?!\.{1,2}(/|$))[^/\0\\]{1,255}){1,8}")
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z")  # of a backup in a folder of backups
_ATTEMPTS = 3  # attempts to copy the records and find the originals of all their documents
_LONGEST_MANIFEST = 256 << 20  # bytes


@dataclass(slots=True)
class BackedUp:
    """The numbers of entries, original files and bytes in a backup, and the documents without an original file."""

    namespaces: dict[str, int] = field(default_factory=dict)  # entries by namespace
    originals: int = 0
    missing_originals: list[str] = field(default_factory=list)  # ids of documents with a missing or damaged original
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The memory that is backed up. `places` are the folders in which the memory stores its files; a backup must not be
    in one of them. `open_copy(folder)` opens the copied data of the backend."""

    backend: MemoryBackend
    originals: Originals
    places: tuple[Path, ...]
    keys: KeyStore
    open_copy: Callable[[Path], MemoryBackend]


def back_up(folder: Path, origin: Origin) -> BackedUp:
    """Copy a memory into the new folder `folder` while other processes use the memory. The backup contains every entry
    that was stored before the call; an entry that is stored during the call may be missing. Raises `InvalidInput` if
    the folder already exists and is not empty, or is in a folder of the memory, `StoreFull` if the folder cannot be
    written, and `StoreDamaged` if the memory cannot be read. After an error there is no new folder."""
    with new_folder(folder, "backups/monday", origin.places) as partial:
        owner = owner_of_copy(origin.originals.owner, partial / INDEXES)
        uploads = partial / UPLOADS / owner.folder
        make_folder(uploads)
        done = _copy(partial, uploads, origin)
        if done.originals:
            settle(owner)
            claim(uploads, owner)
        if keys := origin.keys.stored():
            write_atomically(partial / INDEXES / KEYS_FILE, keys, mode=OWNER_ONLY)
        paths = sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file())
        files = {path: digest_of(partial, path) for path in paths}
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


def next_backup(parent: Path) -> Path:
    """Return the path of a new backup in a folder of backups. Its name is the time in UTC, so names sort by time."""
    return parent / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def delete_older(parent: Path, keep: int) -> list[Path]:
    """Delete all backups in a folder of backups but the newest `keep`, and return their paths. What has no name of
    `next_backup`, or no manifest, stays."""
    made = [path for path in parent.iterdir() if _NAME.fullmatch(path.name) and (path / MANIFEST).is_file()]
    older = sorted(made, key=lambda path: path.name)[:-keep]
    for path in older:
        try:
            delete(path)
        except OSError as error:
            raise store_failure(f"{path} cannot be deleted", error, "check its permissions") from error
    return older


def missing_originals(folder: Path) -> list[str]:
    """Return the ids of the documents whose original was missing or damaged when the backup was made."""
    return [str(document) for document in _checked_manifest(folder)["missing_originals"]]


def check_backup(folder: Path) -> list[str]:
    """Check the files of a backup, and return a message for each file that has changed or cannot be read. Raises
    `InvalidInput` if the folder is not a backup."""
    manifest = _checked_manifest(folder)
    findings = []
    for path, expected in manifest["files"].items():
        if not _FILE.fullmatch(path) or not isinstance(expected, dict):
            findings.append(f"{path[:200]!r} is not a file of a backup, but the manifest lists this path")
            continue
        try:
            if digest_of(folder, path) != expected:
                findings.append(f"{path} has changed since the backup (its checksum differs)")
        except (OSError, InvalidInput) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a plain file"
            findings.append(f"{path} cannot be read: {reason or error}")
    return findings


def _copy(partial: Path, uploads: Path, origin: Origin) -> BackedUp:
    """Copy the data of the backend into the folder `partial`, and the original files into `uploads`. Return the counts.
    The removal of a document also deletes its original file, so the original files are copied first, then the data of
    the backend, and then the originals of documents that were added during the copy. If a document was removed during
    the copy, the data of the backend are copied again."""
    missing: set[str] = set()
    for _ in range(2):  # the second pass is short: it copies what was uploaded during the first
        digests = {digest for _, digest in _documents(origin.backend)}
        missing = {digest for digest in digests if not _copy_original(origin.originals, digest, uploads)}
    for _ in range(_ATTEMPTS):
        indexes = partial / INDEXES
        delete(indexes)
        make_folder(indexes)
        required(origin.backend, BackupStore).backup(indexes)
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
    """Count the entries in the copied data of the backend, and copy the original files of the documents in these data.
    Return the counts, and a dict with the SHA-256 of the original file of each document, by document id."""
    files = {*indexes.iterdir()}
    done, named = BackedUp(), {}
    copy = origin.open_copy(indexes)
    try:
        listed = required(copy, OriginalsStore)
        if absent := listed.absent_documents():  # else a restored memory would delete their original files
            listed.forget_absent(absent)
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
    """Yield the id and the SHA-256 of each document that has an original file."""
    documents = entries_in(backend, backend.namespaces(), kinds=("document",))
    return ((entry.id, entry.metadata["sha256"]) for entry in documents if has_original(entry))


def _copy_original(originals: Originals, digest: str, uploads: Path) -> bool:
    """Copy an original file into `uploads` unless it is there. Return False if the original is missing or damaged."""
    target = uploads / digest[:2] / f"{digest}.bin"
    return target.exists() or copy_original(originals, digest, target) is not None


def _checked_manifest(folder: Path) -> dict[str, Any]:
    advice = "give a folder that `backup` has written"
    try:
        manifest = read_manifest(folder, _LONGEST_MANIFEST)
    except FileNotFoundError:
        raise InvalidInput("folder", f"{folder} has no {MANIFEST}; {advice}") from None
    except InvalidInput:
        raise InvalidInput("folder", f"{MANIFEST} is not a plain file, or is too long; {advice}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput("folder", f"{MANIFEST} cannot be read ({type(error).__name__}); make a new backup") from None
    if not isinstance(manifest, dict):
        manifest = {}
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("files"), dict):
        raise InvalidInput("folder", f"{folder} is not a backup of the format {FORMAT}; {advice}")
    return manifest
