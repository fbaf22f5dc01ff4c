"""What the entries of an export must be to each other, found before anything of it is written, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agentformer.types import MemoryEntry

_PARTS = ("page", "chunk")  # of a document


class Reference(NamedTuple):
    """An entry's field that names another one."""

    entry_id: str
    namespace: str
    field: str
    target: str

    @property
    def problem(self) -> str:
        return f"{self.field} of {self.entry_id} is {self.target}, which is of another namespace"


class Relations:
    """What is known of the entries seen so far: of each where it is, and of a few what they refer to."""

    def __init__(self) -> None:
        self._namespaces: dict[str, str] = {}  # by id
        self._documents: set[str] = set()
        self._once: dict[tuple[str, ...], str] = {}
        self._open: list[Reference] = []  # to what did not come yet
        self._parts: list[tuple[str, str, str]] = []  # id, kind and document of those before their document

    def add(self, entry: MemoryEntry) -> str | None:
        """What is wrong with this entry beside those before it; None where nothing is."""
        if entry.id in self._namespaces:
            return f"has the id {entry.id} twice"
        self._namespaces[entry.id] = entry.namespace
        if entry.kind == "document":
            self._documents.add(entry.id)
        for field, target in _references(entry):
            reference = Reference(entry.id, entry.namespace, field, target)
            if target not in self._namespaces:
                self._open.append(reference)
            elif self._namespaces[target] != entry.namespace:
                return reference.problem
        if entry.kind in _PARTS and (problem := self._belongs(entry)):
            return problem
        for once in _only_once(entry):
            if self._once.setdefault(once, entry.id) != entry.id:
                return f"{self._once[once]} and {entry.id} have one {once[0]} in namespace {entry.namespace[:80]}"
        return None

    def finish(self) -> str | None:
        """What is wrong once all have come."""
        for reference in self._open:
            if self._namespaces.get(reference.target, reference.namespace) != reference.namespace:
                return reference.problem
        for entry_id, kind, document in self._parts:
            if document not in self._documents:
                return f"the {kind} {entry_id} belongs to no document of the export"
        return None

    def leading_out(self) -> list[Reference]:
        """References to what is not in the export."""
        return [reference for reference in self._open if reference.target not in self._namespaces]

    def _belongs(self, part: MemoryEntry) -> str | None:
        document = part.source.document_id if part.source else ""
        if part.parent_id != document:
            return f"the {part.kind} {part.id} belongs to no document of the export"
        if document not in self._documents:
            self._parts.append((part.id, part.kind, document))
        return None


def place_of_block(entry: MemoryEntry) -> tuple[str, ...] | None:
    """What may be there only once: the place and name of a live core block; None of what is none."""
    if entry.tier != "core" or not entry.title or entry.archived_at is not None or entry.superseded_by is not None:
        return None
    return "block", entry.namespace, repr(entry.agent_id), repr(entry.user_id), entry.title


def _references(entry: MemoryEntry) -> Iterator[tuple[str, str]]:
    """What an entry refers to: field and id."""
    for link in entry.derived_from:
        yield "derived_from", link.id
    if entry.source:
        yield "source.document_id", entry.source.document_id
    for name in ("parent_id", "pair_id", "superseded_by", "archived_by"):
        if target := getattr(entry, name):
            yield name, target


def _only_once(entry: MemoryEntry) -> Iterator[tuple[str, ...]]:
    if block := place_of_block(entry):
        yield block
    if entry.kind == "document":
        yield "document name", entry.namespace, entry.content
        if entry.metadata["status"] == "ready":  # files without usable text may be there under two names
            yield "original", entry.namespace, entry.metadata["sha256"]
