"""What the entries of an export must be to each other, found before anything of it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentformer.types import MemoryEntry

_PARTS = ("page", "chunk")  # of a document


def problem(entries: Mapping[str, MemoryEntry]) -> str | None:
    """What is wrong between the entries of one export, by id; None where nothing is."""
    return next(_problems(entries), None)


def place_of_block(entry: MemoryEntry) -> tuple[str, ...] | None:
    """What may be there only once: the place and name of a live core block; None of what is none."""
    if entry.tier != "core" or not entry.title or entry.archived_at is not None or entry.superseded_by is not None:
        return None
    return "block", entry.namespace, repr(entry.agent_id), repr(entry.user_id), entry.title


def _problems(entries: Mapping[str, MemoryEntry]) -> Iterator[str]:
    known: dict[tuple[str, ...], str] = {}
    for entry in entries.values():
        for field, target in _references(entry):
            if target in entries and entries[target].namespace != entry.namespace:
                yield f"{field} of {entry.id} is {target}, which is of another namespace"
        if entry.kind in _PARTS and not _belongs(entry, entries):
            yield f"the {entry.kind} {entry.id} belongs to no document of the export"
        for once in _only_once(entry):
            if known.setdefault(once, entry.id) != entry.id:
                yield f"{known[once]} and {entry.id} have one {once[0]} in namespace {entry.namespace[:80]}"


def _references(entry: MemoryEntry) -> Iterator[tuple[str, str]]:
    """What an entry refers to: field and id."""
    for link in entry.derived_from:
        yield "derived_from", link.id
    if entry.source:
        yield "source.document_id", entry.source.document_id
    for name in ("parent_id", "pair_id", "superseded_by", "archived_by"):
        if target := getattr(entry, name):
            yield name, target


def _belongs(part: MemoryEntry, entries: Mapping[str, MemoryEntry]) -> bool:
    document = entries.get(part.source.document_id) if part.source else None
    return document is not None and document.kind == "document" and part.parent_id == document.id


def _only_once(entry: MemoryEntry) -> Iterator[tuple[str, ...]]:
    if block := place_of_block(entry):
        yield block
    if entry.kind == "document":
        yield "document name", entry.namespace, entry.content
        if entry.metadata["status"] == "ready":  # files without usable text may be there under two names
            yield "original", entry.namespace, entry.metadata["sha256"]
