"""Write an export, a copy of some namespaces as of one moment. The export is written entry by entry, so it needs little
memory."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from agentformer.archive.format import (
    FORMAT,
    LONGEST_LINE,
    MANIFEST,
    entries_in,
    entries_path,
    entry_lines,
    has_original,
    original_path,
    vector_line,
    vectors_path,
)
from agentformer.errors import InvalidInput, NotFound, StoreBusy, StoreError, store_failure
from agentformer.rag.originals import Originals
from agentformer.records.integrity.files import HashedFile, hashed_file, new_folder
from agentformer.records.offers import required
from agentformer.types import EmbeddingSpace, MemoryBackend, MemorySnapshot, SnapshotStore


@dataclass(slots=True)
class Exported:
    """The number of entries in each namespace of an export, and the numbers of former versions, original files and
    vectors. `missing_originals` has the ids of documents without an original file."""

    namespaces: dict[str, int] = field(default_factory=dict)  # entries by namespace
    former: int = 0  # former versions
    originals: int = 0
    missing_originals: list[str] = field(default_factory=list)  # ids of documents with a missing or damaged original
    vectors: int = 0


def export_to(
    folder: Path,
    backend: MemoryBackend,
    originals: Originals,
    namespaces: Sequence[str] | None,
    *,
    vectors: bool = False,
    user_id: str | None = None,
    places: Sequence[Path] = (),
) -> Exported:
    """Export some namespaces into a new folder, or all namespaces if `namespaces` is None. The export contains the
    vectors only if `vectors` is true. If `user_id` is given, it contains only the entries and documents of this user,
    and only the namespaces that have some. `places` are the folders of the memory. Raises `InvalidInput` if the folder
    already exists and is not empty, or is in one of `places`, `NotFound` if the user has no entries, `StoreFull` if the
    folder cannot be written, and `StoreDamaged` if entries cannot be read. After an error there is no new folder."""
    if user_id is not None and vectors:
        raise InvalidInput(
            "vectors", "cannot be exported for one user; import the export, which embeds the texts again"
        )
    with (
        new_folder(folder, "backup/monday", places) as partial,
        required(backend, SnapshotStore).snapshot() as snapshot,
    ):
        writer = _Writer(partial, snapshot, originals, user_id)
        names = sorted(set(snapshot.namespaces() if namespaces is None else namespaces))
        if user_id is not None:
            names = [name for name in names if next(entries_in(snapshot, [name], user_id=user_id), None)]
            if not names:
                raise NotFound(f"the user {user_id[:200]!r} has no entries and no documents here; check the namespace")
        writer.write_originals(names)
        for namespace in names:
            writer.write_entries(namespace)
        if vectors:
            writer.write_vectors(names)
        writer.write_manifest()
    return writer.done


def copy_original(originals: Originals, digest: str, target: Path) -> dict[str, Any] | None:
    """Copy an original file, which is named by its SHA-256 `digest`, to the new file `target`. Return the length and
    the SHA-256 of the file, or None if the original file is missing or damaged. Raises `OSError` if `target` cannot be
    written, and `StoreBusy` if the storage of the original files cannot be reached now."""
    try:
        source = originals.files.open(digest)
    except StoreBusy:
        raise
    except (NotFound, StoreError):
        return None
    with source, hashed_file(target) as file:
        shutil.copyfileobj(source, file)
    if file.digest["sha256"] != digest:
        target.unlink()
        return None
    return file.digest


def zipped(folder: Path) -> BinaryIO:
    """Return an open temporary file with a ZIP archive of the files of an export, at its beginning. Closing the file
    deletes it. Raises `StoreFull` if the file cannot be written."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - returned
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                archive.write(path, path.relative_to(folder).as_posix())
        file.seek(0)
    except BaseException as error:
        file.close()
        if isinstance(error, OSError):
            advice = "free some disk space for temporary files"
            raise store_failure("the archive of the export cannot be written", error, advice) from error
        raise
    return file


class _Writer:
    def __init__(self, folder: Path, snapshot: MemorySnapshot, originals: Originals, user_id: str | None) -> None:
        self._folder = folder
        self._snapshot = snapshot
        self._originals = originals
        self._user_id = user_id
        self._files: dict[str, dict[str, Any]] = {}  # length and SHA-256 of each file, by its path in the export
        self._vector_files: dict[str, dict[str, Any]] = {}  # space and number of vectors, by the path of the file
        self.done = Exported()

    def write_originals(self, namespaces: Sequence[str]) -> None:
        """Write the original files of the documents in these namespaces. A file that is missing or damaged is added to
        `missing_originals`. Call this method first: another process may delete a document and its file during the
        export, and an early copy still has this file."""
        for entry in entries_in(self._snapshot, namespaces, ("document",), self._user_id):
            path = original_path(entry.metadata["sha256"]) if has_original(entry) else ""
            if not path or path in self._files:
                continue
            if digest := copy_original(self._originals, entry.metadata["sha256"], self._folder / path):
                self._files[path] = digest
                self.done.originals += 1
            else:
                self.done.missing_originals.append(entry.id)

    def write_entries(self, namespace: str) -> None:
        """Write the entries of a namespace, each followed by its former versions."""
        path, count = entries_path(namespace), 0
        with hashed_file(self._folder / path) as file:
            for entry in entries_in(self._snapshot, [namespace], user_id=self._user_id):
                versions = self._snapshot.history(entry.id)
                history = [each for each in versions if self._user_id in (None, each.user_id)]
                for line in map(str.encode, entry_lines(entry, history)):
                    if len(line) > LONGEST_LINE:
                        raise StoreError(
                            f"entry {entry.id} needs {len(line)} bytes in an export, but the limit is {LONGEST_LINE}; "
                            "shorten the entry"
                        )
                    file.write(line)
                count += 1
                self.done.former += len(history)
        self._files[path] = file.digest
        self.done.namespaces[namespace] = count

    def write_vectors(self, namespaces: Sequence[str]) -> None:
        """Write the vectors of these namespaces into one file for each embedding space."""
        files: dict[EmbeddingSpace, HashedFile] = {}
        counts: dict[EmbeddingSpace, int] = {}
        with ExitStack() as stack:
            for stored in self._snapshot.vectors(namespaces):
                if stored.space not in files:
                    path = self._folder / vectors_path(stored.space)
                    files[stored.space] = stack.enter_context(hashed_file(path))
                files[stored.space].write(vector_line(stored).encode())
                counts[stored.space] = counts.get(stored.space, 0) + 1
        for space, file in files.items():
            self._files[vectors_path(space)] = file.digest
            self._vector_files[vectors_path(space)] = {"space": dataclasses.asdict(space), "count": counts[space]}
        self.done.vectors = sum(counts.values())

    def write_manifest(self) -> None:
        """Write the manifest, which lists the files of the export."""
        manifest = {
            "format": FORMAT,
            "namespaces": self.done.namespaces,
            "files": self._files,
            "missing_originals": sorted(self.done.missing_originals),
            "vectors": self._vector_files,
            **({} if self._user_id is None else {"user_id": self._user_id}),
        }
        write_manifest(self._folder, manifest)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write `manifest` as JSON into the manifest file of an export or a backup."""
    text = json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True)
    with hashed_file(folder / MANIFEST) as file:
        file.write(f"{text}\n".encode())
