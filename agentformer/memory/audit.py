"""Audits of a memory. `Auditor` reports duplicates, entries that are never read, contradictions, and core blocks that
are too large. It uses no language model and changes nothing. `merge_duplicates` marks duplicates as superseded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Annotated

from agentformer.errors import Conflict, NotFound
from agentformer.memory.backends import all_entries, is_live
from agentformer.memory.contradictions import Contradiction, FactContradictions, block_contradictions
from agentformer.memory.near_duplicates import Text, find_near_duplicates, normalize
from agentformer.records.duplicates import is_duplicate
from agentformer.records.offers import required, vectors_of
from agentformer.text.normalize import normalized
from agentformer.types import UNSEARCHED_KINDS, HitVectors, MemoryBackend, MemoryEntry, Scope, Shown, SnapshotStore

_NO_DUPLICATES = frozenset({*UNSEARCHED_KINDS, "message"})
UNREAD_DAYS = 30  # an entry without any use is reported after this many days
_LISTED_UNREAD = 20  # at most this many unread entries are listed; all of them are counted
_EXCERPT = 200  # at most this many code points of a duplicate are shown
_NEARLY_FULL = 0.8  # a block above this share of its limit is reported, because the next edits may not fit
_PAGE = 1000  # duplicates read at a time
_END_MARKS = " .!。！"
_MAX_VARIANTS = 20  # an entry is compared with at most this many groups of entries with the same text


@dataclass(frozen=True, slots=True)
class Duplicates:
    """A group of entries with equal or similar content. `ids` are the ids of the entries, oldest entry first.
    `versions` are the versions of the entries at the time of the audit."""

    ids: tuple[str, ...]
    versions: tuple[int, ...]
    # The lowest similarity of an entry to the first entry; 1.0 means the same words.
    similarity: Annotated[float, Shown("The similarity of the entries, from 0 to 1.")]
    excerpt: str  # the beginning of the first entry


@dataclass(frozen=True, slots=True)
class Unread:
    """Entries that were stored at least `days` days ago, and that no search has found and no caller has read. `count`
    is their number, `kinds` is the number for each kind of entry, and `ids` are the ids of the oldest entries, at most
    20."""

    days: int
    count: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    ids: Annotated[tuple[str, ...], Shown("The ids of the oldest of these entries.")] = ()


@dataclass(frozen=True, slots=True)
class Oversized:
    """A core block (a named text that is in every context) whose tokens exceed or almost reach its limit."""

    id: str
    title: str
    tokens: int
    limit: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit of the live entries of a namespace; archived and superseded entries are not live.
    `duplicates` are groups of entries with the same owner and the
    same details (such as title and metadata). Their texts differ at most in capital letters, white space and the final
    punctuation. `merge_duplicates` can merge them. `near_duplicates` are groups of similar texts; a person must decide
    whether they are duplicates. Messages, working entries and parts of documents are not compared, because people
    repeat themselves and documents quote each other."""

    namespace: str
    entries: int
    compared: Annotated[
        Mapping[str, int],
        Shown(
            "The number of `texts` that were searched for duplicates, and the numbers of `facts` and of `core_blocks` "
            "that were searched for contradictions."
        ),
    ] = field(default_factory=dict)
    duplicates: Annotated[
        tuple[Duplicates, ...], Shown("Groups of entries with the same text, owner, title and metadata.")
    ] = ()
    near_duplicates: Annotated[
        tuple[Duplicates, ...], Shown("Groups of similar entries, which a person should compare.")
    ] = ()
    unread: Unread = field(default_factory=lambda: Unread(UNREAD_DAYS))
    contradictions: tuple[Contradiction, ...] = ()
    oversized: tuple[Oversized, ...] = ()
    # Also the limits that the audit reached.
    notes: Annotated[tuple[str, ...], Shown("Descriptions of the checks that were not done, with the reasons.")] = ()


@dataclass(frozen=True, slots=True)
class Auditor:
    """Audits a backend. `block_tokens` is the largest allowed number of tokens of a core block."""

    backend: MemoryBackend
    count_tokens: Callable[[str], int]
    block_tokens: int

    def run(
        self, *, namespace: str, user_id: str | None = None, project: str | None = None, at: datetime | None = None
    ) -> AuditReport:
        """Examine the live entries of a namespace and return a report. With `user_id` or `project`, only the entries of
        this user or project are examined. An entry that was never used is reported as unread after `UNREAD_DAYS`. The
        age of an entry is computed at the moment `at` (default: now). Nothing is changed."""
        read_before = (at or datetime.now(UTC)) - timedelta(days=UNREAD_DAYS)
        candidates, blocks = list[_Candidate](), list[MemoryEntry]()
        unread, unread_ids = Counter[str](), list[str]()
        facts, entries = FactContradictions(), 0
        for entry in all_entries(self.backend, Scope(namespace, user_id=user_id)):
            if not _belongs_to(entry, user_id, project):
                continue
            entries += 1
            if entry.tier == "core":
                blocks.append(entry)
            if entry.kind not in _NO_DUPLICATES and entry.tier != "working" and entry.source is None:
                candidates.append(_Candidate.of(entry))
            facts.add(entry)
            if _is_unread(entry, read_before):
                unread[entry.kind] += 1
                unread_ids += [entry.id] if len(unread_ids) < _LISTED_UNREAD else []
        exact = tuple(_exact_duplicates(self.backend, candidates))
        near = tuple(_near_duplicates(candidates, exact))
        unread_report = Unread(UNREAD_DAYS, unread.total(), dict(sorted(unread.items())), tuple(unread_ids))
        vectors = _vectors_of(self.backend, namespace, facts.ids)
        (of_blocks, block_notes), (of_facts, fact_notes) = block_contradictions(blocks), facts.find(vectors)
        contradictions, notes = (*of_blocks, *of_facts), (*block_notes, *fact_notes)
        compared = {"texts": len(candidates), "facts": facts.examined, "core_blocks": len(blocks)}
        sizes = [
            Oversized(block.id, block.title, self.count_tokens(block.content), self.block_tokens) for block in blocks
        ]
        oversized = tuple(size for size in sizes if size.tokens > _NEARLY_FULL * self.block_tokens)
        return AuditReport(namespace, entries, compared, exact, near, unread_report, contradictions, oversized, notes)


def _vectors_of(backend: MemoryBackend, namespace: str, ids: Set[str]) -> HitVectors | None:
    """Return the vectors of entries in the active embedding space, or None if there is none."""
    active = next((state.space for state in vectors_of(backend).spaces() if state.state == "active"), None)
    if active is None or not ids:
        return None
    with required(backend, SnapshotStore).snapshot() as snapshot:
        rows = {each.id: each.vector for each in snapshot.entry_vectors(namespace) if each.id in ids}
    return HitVectors((active.provider, active.model), rows)


def merge_duplicates(backend: MemoryBackend, report: AuditReport) -> list[MemoryEntry]:
    """Merge the groups of `report.duplicates`: mark all entries of a group except the oldest as superseded by the
    oldest. Return the marked entries. Entries that changed after the audit are skipped. Nothing is deleted."""
    merged: list[MemoryEntry] = []
    for group in report.duplicates:
        versions = dict(zip(group.ids, group.versions, strict=True))
        live = filter(is_live, backend.get(group.ids))
        unchanged = [entry for entry in live if entry.version == versions[entry.id]]
        if not unchanged or unchanged[0].id != group.ids[0]:
            continue
        oldest, *others = unchanged
        updates = [_supersede(backend, entry, oldest.id) for entry in others if _repeats(entry, oldest)]
        merged += [entry for entry in updates if entry]
    current = {entry.id: entry.superseded_by for entry in backend.get([entry.id for entry in merged])}
    return [entry for entry in merged if current.get(entry.id)]  # no longer superseded if the oldest entry was removed


def _supersede(backend: MemoryBackend, entry: MemoryEntry, by: str) -> MemoryEntry | None:
    """Mark the entry as superseded (replaced) by the entry with the id `by`. Return the updated entry, or None if
    another caller has changed, removed or superseded one of the two entries."""
    try:
        return backend.update(entry.id, {"superseded_by": by}, expected_version=entry.version)
    except (Conflict, NotFound):
        return None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The parts of an entry that the search for duplicates compares."""

    id: str
    version: int
    owner: str  # only entries with the same owner are compared
    content: str
    digest: bytes  # hash of the owner and of the normalized text; equal for duplicates

    @classmethod
    def of(cls, entry: MemoryEntry) -> _Candidate:
        """Return a candidate with the fields of this entry."""
        owner = json.dumps([entry.tier == "core", entry.agent_id, entry.user_id, entry.project])
        text = f"{owner}\0{_spelling(entry.content)}"
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return cls(entry.id, entry.version, owner, entry.content, digest)


def _belongs_to(entry: MemoryEntry, user_id: str | None, project: str | None) -> bool:
    """Return whether the audit examines this entry. The caller must pass only entries of the user `user_id`, if it is
    given. If `project` is None, the audit examines every passed entry. If `project` is given, it examines the entries
    of this project, and core blocks, which have no project. Of the core blocks, it examines those of the user
    `user_id`; if `user_id` is None, these are the core blocks without a user."""
    if project is None:
        return True
    return entry.user_id == user_id if entry.tier == "core" else entry.project == project


def _is_unread(entry: MemoryEntry, read_before: datetime) -> bool:
    if entry.tier == "core" or entry.kind in UNSEARCHED_KINDS or entry.read_count or entry.match_count:
        return False
    return entry.created_at is not None and entry.created_at <= read_before


def _exact_duplicates(backend: MemoryBackend, candidates: Sequence[_Candidate]) -> list[Duplicates]:
    """Return groups of entries that have the same owner and, apart from the spelling (see `_spelling`), the same
    content. The first entry of each group has all details (such as title and metadata) of the other entries in the
    group."""
    by_digest: dict[bytes, list[str]] = {}
    for candidate in candidates:
        by_digest.setdefault(candidate.digest, []).append(candidate.id)
    return [group for ids in by_digest.values() if len(ids) > 1 for group in _same_details(backend, ids)]


def _spelling(text: str) -> str:
    """Return the text in a normalized spelling: in lower case, with single spaces, and without full stops and
    exclamation marks at its end. Other signs stay, because they can be a part of the statement ("-5", "1.5", "C++")."""
    return " ".join(normalized("NFKC", text).casefold().split()).rstrip(_END_MARKS) or text


def _repeats(entry: MemoryEntry, older: MemoryEntry) -> bool:
    """Return whether `entry` duplicates `older` (see `is_duplicate`), apart from the spelling (see `_spelling`)."""
    same = _spelling(entry.content) == _spelling(older.content)
    return same and is_duplicate(replace(entry, content=older.content), older)


def _same_details(backend: MemoryBackend, ids: Sequence[str]) -> Iterator[Duplicates]:
    """Split entries with the same content into groups with the same details, such as title and metadata. `store` uses
    the same rule to recognize a duplicate. A group of only one entry is left out."""
    groups: list[list[MemoryEntry]] = []
    for start in range(0, len(ids), _PAGE):
        for entry in backend.get(ids[start : start + _PAGE]):
            group = next((group for group in groups[:_MAX_VARIANTS] if _repeats(entry, group[0])), None)
            if group is None:
                groups.append([entry])
            else:
                group.append(entry)
    return (_duplicates(group, 1.0) for group in groups if len(group) > 1)


def _near_duplicates(candidates: Sequence[_Candidate], exact: Sequence[Duplicates]) -> Iterator[Duplicates]:
    """Yield groups of similar entries. From each group of `exact`, only the first entry is compared with other entries,
    because the group was already reported."""
    repeated = {entry_id for group in exact for entry_id in group.ids[1:]}
    texts = [Text(n, item.owner, item.content) for n, item in enumerate(candidates) if item.id not in repeated]
    for group in find_near_duplicates(texts):
        items = [candidates[n] for n in group.keys]
        same_words = len({normalize(item.content) for item in items}) == 1
        yield _duplicates(items, 1.0 if same_words else min(group.similarity, 0.999))


def _duplicates(items: Sequence[MemoryEntry] | Sequence[_Candidate], similarity: float) -> Duplicates:
    excerpt = " ".join(items[0].content[: 4 * _EXCERPT].split())[:_EXCERPT]
    ids, versions = tuple(item.id for item in items), tuple(item.version for item in items)
    return Duplicates(ids, versions, round(similarity, 3), excerpt)
