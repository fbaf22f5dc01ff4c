"""Import an export into a memory. If a part of the export is damaged or conflicts with the memory, nothing is
imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentformer.archive import batches
from agentformer.archive.reader import Archive, ArchivedEntry, block_key
from agentformer.errors import Conflict, InvalidInput
from agentformer.memory.backends import all_entries
from agentformer.memory.hierarchical import CoreMemory
from agentformer.rag.documents import document_of
from agentformer.rag.originals import Originals
from agentformer.rag.uploads import identity
from agentformer.records.entry_json import COUNTS, entry_to_json
from agentformer.records.offers import vectors_of
from agentformer.types import MemoryBackend, MemoryEntry, Scope

# Limits of one transaction. A document or a summary is never separated from its parts.
_BATCH = 500  # entries
_BATCH_BYTES = 16 << 20  # of their lines, so that long entries do not fill the memory
_BLOCKS = 10_000  # core blocks of a namespace
_LISTED = 10  # at most this many conflicts are listed in a message


@dataclass(slots=True)
class Imported:
    """The numbers of imported entries, former versions and vectors, and the number of entries that the memory had
    before."""

    entries: int = 0
    there_already: int = 0
    former: int = 0  # former versions
    vectors: int = 0  # vectors that were kept, so that their texts are not embedded again


@dataclass(frozen=True, slots=True)
class Destination:
    """The memory into which an export is imported."""

    backend: MemoryBackend
    originals: Originals
    core: CoreMemory


def import_into(
    destination: Destination, archive: Archive, progress: Callable[[int, int], None] | None = None
) -> Imported:
    """Store the entries that the memory does not have yet, in the order of the export, each batch in one transaction.
    `progress(stored, total)` is called with the number of entries that are stored, and the number of all entries to
    store. A second import continues an interrupted one. Raises `Conflict` if the memory has a different entry with the
    same id, or another document or core block with the same name, and `InvalidInput` if an entry exceeds a limit. After
    one of these errors, nothing was stored."""
    backend = destination.backend
    missing = _missing_entries(backend, archive)
    _check_references(backend, archive, missing)
    _check_documents(backend, archive, missing)
    _check_blocks(destination, archive, missing)
    done = Imported(there_already=len(archive) - len(missing))
    if missing and archive.vectors:
        done.vectors = vectors_of(backend).keep_vectors(archive.all_vectors())
    for batch in _batches(archive, missing):
        entries = list(archive.read(batch))
        _store(destination, archive, entries)
        done.entries += len(entries)
        done.former += sum(len(archived.history) for archived in entries)
        if progress:
            progress(done.entries, len(missing))
    return done


def _missing_entries(backend: MemoryBackend, archive: Archive) -> list[int]:
    """Return the positions (in the export) of the entries that the memory does not have. Raises `Conflict` if the
    memory has an entry with the same id but different fields."""
    if not backend.namespaces():
        return list(range(len(archive)))
    missing: list[int] = []
    different: list[str] = []
    for numbers in batches(range(len(archive)), _BATCH):
        stored = {entry.id: entry for entry in backend.get([archive.ids[number] for number in numbers])}
        missing += [number for number in numbers if archive.ids[number] not in stored]
        for entry, _ in archive.read(number for number in numbers if archive.ids[number] in stored):
            if _without_counts(stored[entry.id]) != _without_counts(entry):
                different.append(entry.id)
    if different:
        more = f" and {len(different) - _LISTED} more" if len(different) > _LISTED else ""
        raise Conflict(
            f"nothing was imported: {len(different)} entries already exist with different content: "
            f"{', '.join(different[:_LISTED])}{more}; import into another --index-dir, "
            "or delete these entries first: agentformer forget ID"
        )
    return missing


def _without_counts(entry: MemoryEntry) -> Mapping[str, Any]:
    """Return the fields that must be equal for an entry to count as already stored. Use counts are left out, and also
    `superseded_by`, because a backend clears this field if the successor does not exist. An entry that was superseded
    after the export still differs, because its version is higher."""
    ignored = (*COUNTS, "last_accessed", "superseded_by")
    return {name: value for name, value in entry_to_json(entry).items() if name not in ignored}


def _check_references(backend: MemoryBackend, archive: Archive, missing: Sequence[int]) -> None:
    """Raise `InvalidInput` if one of the entries to import refers to an entry of the memory that is in a different
    namespace. `missing` are the positions of the entries to import."""
    new = {archive.ids[number] for number in missing}
    references = [reference for reference in archive.outside_references if reference.entry_id in new]
    for group in batches(references, _BATCH):
        namespaces = {entry.id: entry.namespace for entry in backend.get([reference.target for reference in group])}
        for reference in group:
            if namespaces.get(reference.target, reference.namespace) != reference.namespace:
                raise InvalidInput("folder", f"nothing was imported: {reference.problem}")


def _check_documents(backend: MemoryBackend, archive: Archive, missing: Sequence[int]) -> None:
    """Raise `Conflict` if the memory has a document with the same identity (see `rag.uploads`) and another id."""
    new = set(missing)
    for entry, _ in archive.read(number for number in archive.documents if number in new):
        field = "origin" if entry.metadata.get("origin") else "name"
        scope = Scope(entry.namespace, kinds=("document",), metadata={field: entry.metadata[field]})
        for document in all_entries(backend, scope):
            if identity(document_of(document)) == identity(document_of(entry)):
                raise Conflict(
                    f"nothing was imported: {entry.content[:200]!r} already exists in namespace {entry.namespace}, as "
                    f"document {document.id}; remove this document first: agentformer remove {document.id}"
                )


def _check_blocks(destination: Destination, archive: Archive, missing: Sequence[int]) -> None:
    """Check the core blocks to import. A core block is a named text that every prompt contains. Raises `InvalidInput`
    if a block is longer than the limit, and `Conflict` if the memory already has a block with the same name."""
    new = set(missing)
    taken: dict[str, dict[tuple[str, ...] | None, str]] = {}  # by namespace and block
    for entry, _ in archive.read(number for number in archive.blocks if number in new):
        try:
            destination.core.check(entry.title or "(untitled)", entry.content)
        except InvalidInput as error:
            raise InvalidInput("folder", f"nothing was imported: {entry.id}: {error}") from None
        if entry.namespace not in taken:
            blocks = destination.backend.list(Scope(entry.namespace, tiers=("core",)), limit=_BLOCKS)
            taken[entry.namespace] = {block_key(block): block.id for block in blocks}
        key = block_key(entry)
        if key and key in taken[entry.namespace]:
            stored = taken[entry.namespace][key]
            raise Conflict(
                f"nothing was imported: a core block {entry.title[:80]!r} already exists in namespace "
                f"{entry.namespace[:80]}, as entry {stored}; delete this block first: agentformer forget {stored}"
            )


def _batches(archive: Archive, missing: Sequence[int]) -> Iterator[list[int]]:
    """Yield lists of positions of entries, each for one transaction. A document is in the same list as its pages and
    chunks, and a summary as its originals, so that no document and no summary is incomplete after an interruption."""
    batch: list[int] = []
    size = 0
    for group in archive.groups(missing):
        batch += group
        size += sum(map(archive.size, group))
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _store(destination: Destination, archive: Archive, batch: Sequence[ArchivedEntry]) -> None:
    """Store a batch of entries, and the original files of the documents in this batch."""
    documents = [entry for entry, _ in batch if entry.kind == "document"]
    digests = {entry.metadata["sha256"] for entry in documents} & archive.originals
    with destination.originals.storing(documents, map(archive.original, sorted(digests))):
        former = {entry.id: history for entry, history in batch if history}
        destination.backend.store([entry for entry, _ in batch], former=former)
