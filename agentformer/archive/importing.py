"""Bringing an export into a memory: nothing where anything of it is damaged or stands against what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentformer.archive.checks import place_of_block
from agentformer.archive.reading import Archive, Remembered
from agentformer.errors import Conflict, InvalidInput
from agentformer.memory.core import CoreMemory
from agentformer.rag.documents import Originals
from agentformer.records.entry_json import entry_to_json
from agentformer.types import MemoryBackend, MemoryEntry, Scope

# Of one transaction, or one document or summary with all of its own where that is more.
_BATCH = 500  # entries
_BATCH_BYTES = 16 << 20  # of their lines, so that what is held does not grow with long entries
_BLOCKS = 10_000  # core blocks of a namespace
_TOLD = 10  # conflicts
_COUNTS = ("access_count", "match_count", "read_count", "repeat_count", "last_accessed")


@dataclass(slots=True)
class Imported:
    """What an import came to."""

    entries: int = 0
    there_already: int = 0
    former: int = 0  # former versions
    vectors: int = 0  # that were kept, and spare the embedder


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an export goes."""

    backend: MemoryBackend
    originals: Originals
    core: CoreMemory
    released: Callable[[Iterable[str]], None]  # deletes originals that no document has


def import_into(there: Destination, archive: Archive, progress: Callable[[int, int], None] | None = None) -> Imported:
    """Store what is not there yet, in its order. Each batch is one transaction; interrupted, another call goes on.

    Raises `Conflict` where an entry, a document or a core block is there already and differs, and `InvalidInput` for
    what does not fit this memory; then nothing was stored."""
    fresh = _fresh(there.backend, archive)
    _check_references(there.backend, archive, fresh)
    _check_documents(there.backend, archive, fresh)
    _check_blocks(there, archive, fresh)
    done = Imported(there_already=len(archive) - len(fresh))
    if fresh and archive.vectors:
        done.vectors = there.backend.keep_vectors(archive.all_vectors())
    for batch in _batches(archive, fresh):
        found = list(archive.read(batch))
        _store(there, archive, found)
        done.entries += len(found)
        done.former += sum(len(each.past) for each in found)
        if progress:
            progress(done.entries, len(fresh))
    return done


def _fresh(backend: MemoryBackend, archive: Archive) -> list[int]:
    """The numbers of those that are not there yet. Raises `Conflict` where one is there and differs."""
    if not backend.namespaces():
        return list(range(len(archive)))
    fresh: list[int] = []
    differ: list[str] = []
    for start in range(0, len(archive), _BATCH):
        numbers = range(start, min(start + _BATCH, len(archive)))
        known = {entry.id: entry for entry in backend.get([archive.ids[number] for number in numbers])}
        fresh += [number for number in numbers if archive.ids[number] not in known]
        same = (number for number in numbers if archive.ids[number] in known)
        differ += [each.entry.id for each in archive.read(same) if _said(known[each.entry.id]) != _said(each.entry)]
    if differ:
        more = f" and {len(differ) - _TOLD} more" if len(differ) > _TOLD else ""
        raise Conflict(
            f"nothing was imported: {len(differ)} entries are there already, and differ: "
            f"{', '.join(differ[:_TOLD])}{more}; import into another --index-dir, or forget those first"
        )
    return fresh


def _said(entry: MemoryEntry) -> Mapping[str, Any]:
    """An entry without how often it was used, which is no change of it."""
    return {name: value for name, value in entry_to_json(entry).items() if name not in _COUNTS}


def _check_references(backend: MemoryBackend, archive: Archive, fresh: Sequence[int]) -> None:
    """Raises `InvalidInput` where a new entry refers to one that is there in another namespace."""
    new = {archive.ids[number] for number in fresh}
    leading_out = [reference for reference in archive.leading_out if reference.entry_id in new]
    for start in range(0, len(leading_out), _BATCH):
        group = leading_out[start : start + _BATCH]
        known = {entry.id: entry.namespace for entry in backend.get([reference.target for reference in group])}
        for reference in group:
            if known.get(reference.target, reference.namespace) != reference.namespace:
                raise InvalidInput("folder", f"nothing was imported: {reference.problem}")


def _check_documents(backend: MemoryBackend, archive: Archive, fresh: Sequence[int]) -> None:
    """Raises `Conflict` where a document of the same name or bytes is there under another id: each is there once."""
    new = set(fresh)
    for entry, _ in archive.read(number for number in archive.documents if number in new):
        for name in ("name", "sha256"):
            same = Scope(entry.namespace, kinds=("document",), metadata={name: entry.metadata[name]})
            if found := backend.list(same, limit=1):
                raise Conflict(
                    f"nothing was imported: {entry.content[:200]!r} is in namespace {entry.namespace} already, as "
                    f"document {found[0].id}; remove that first: agentformer remove {found[0].id}"
                )


def _check_blocks(there: Destination, archive: Archive, fresh: Sequence[int]) -> None:
    """Raises `InvalidInput` for a core block over the limit, and `Conflict` where its place and name are taken."""
    new = set(fresh)
    taken: dict[str, dict[tuple[str, ...] | None, str]] = {}  # by namespace and place
    for entry, _ in archive.read(number for number in archive.blocks if number in new):
        try:
            there.core.check(entry.title or "(untitled)", entry.content)
        except InvalidInput as error:
            raise InvalidInput("folder", f"nothing was imported: {entry.id}: {error}") from None
        if entry.namespace not in taken:
            blocks = there.backend.list(Scope(entry.namespace, tiers=("core",)), limit=_BLOCKS)
            taken[entry.namespace] = {place_of_block(block): block.id for block in blocks}
        place = place_of_block(entry)
        if place and place in taken[entry.namespace]:
            same = taken[entry.namespace][place]
            raise Conflict(
                f"nothing was imported: there is a core block {entry.title[:80]!r} in namespace "
                f"{entry.namespace[:80]} already, as {same}; forget that first: agentformer forget {same}"
            )


def _batches(archive: Archive, fresh: Sequence[int]) -> Iterator[list[int]]:
    """Entries in groups of one transaction each. What belongs together goes together, so that an interruption leaves no
    half of it."""
    batch: list[int] = []
    size = 0
    for group in archive.groups(fresh):
        batch += group
        size += sum(map(archive.size, group))
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _store(there: Destination, archive: Archive, batch: Sequence[Remembered]) -> None:
    """One transaction, and the originals of its documents."""
    digests = {entry.metadata["sha256"] for entry, _ in batch if entry.kind == "document"} & archive.originals
    try:
        for digest in digests:
            there.originals.put(archive.original(digest))
        there.backend.store([entry for entry, _ in batch], former={entry.id: past for entry, past in batch if past})
        for digest in digests:
            there.originals.put_locked(archive.original(digest))  # a concurrent removal may have deleted the file
    except BaseException:
        there.released(digests)
        raise
