"""The audit of a memory: duplicates, entries that are never read, contradictions, and oversized core blocks. It uses no
language model and changes nothing. Only `merge_duplicates` supersedes exact duplicates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from agentformer.errors import Conflict, NotFound
from agentformer.memory.backends import all_entries, is_live
from agentformer.memory.facts import Contradiction, find_contradictions
from agentformer.memory.near_duplicates import Text, find_near_duplicates, normalize
from agentformer.records.entries import is_duplicate
from agentformer.types import UNSEARCHED_KINDS, MemoryBackend, MemoryEntry, Scope

UNREAD_DAYS = 30  # days; an older entry without any use is reported
_LISTED_UNREAD = 20  # at most this many unread entries are listed; all of them are counted
_EXCERPT = 200  # at most this many code points of a duplicate are shown
_NEARLY_FULL = 0.8  # share of a block's limit; above this share, the next edits will not fit
_PAGE = 1000  # duplicates read at a time
_MAX_VARIANTS = 20  # groups of one text with different details; further entries are compared with these groups only


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Entries with the same content, oldest first, and their versions at the time of the audit."""

    ids: tuple[str, ...]
    versions: tuple[int, ...]
    similarity: float  # 0..1, the lowest similarity to the first entry; 1.0: the same words
    excerpt: str  # of the first entry


@dataclass(frozen=True, slots=True)
class Unread:
    """Entries that were stored at least `days` ago, and that no search found and no caller read."""

    days: int
    count: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    ids: tuple[str, ...] = ()  # the oldest few


@dataclass(frozen=True, slots=True)
class Oversized:
    """A core block that exceeds its token limit, or is close to the limit."""

    id: str
    title: str
    tokens: int
    limit: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Findings among the live entries of a namespace. `duplicates` are groups of entries with equal text, owner and
    details, which can be merged. `near_duplicates` are groups of similar entries; a person decides what to do with
    them. Messages, parts of documents and entries of the working tier are not compared, because people repeat
    themselves and documents quote each other."""

    namespace: str
    entries: int
    duplicates: tuple[Duplicates, ...] = ()
    near_duplicates: tuple[Duplicates, ...] = ()
    unread: Unread = field(default_factory=lambda: Unread(UNREAD_DAYS))
    contradictions: tuple[Contradiction, ...] = ()
    oversized: tuple[Oversized, ...] = ()
    notes: tuple[str, ...] = ()  # limits that the audit reached


def audit(
    backend: MemoryBackend,
    *,
    namespace: str,
    user_id: str | None = None,
    project: str | None = None,
    count_tokens: Callable[[str], int],
    block_tokens: int,
    unread_days: int = UNREAD_DAYS,
    at: datetime | None = None,
) -> AuditReport:
    """Examine the live entries of a namespace, or only the entries of one user and project. Change nothing.
    `block_tokens` is the limit of a core block. The ages of entries are computed at the moment `at` (default: now)."""
    read_before = (at or datetime.now(UTC)) - timedelta(days=unread_days)
    candidates: list[_Candidate] = []
    blocks: list[MemoryEntry] = []
    unread: Counter[str] = Counter()
    unread_ids: list[str] = []
    entries = 0
    for entry in all_entries(backend, Scope(namespace, user_id=user_id)):
        if not _belongs_to(entry, user_id, project):
            continue
        entries += 1
        if entry.tier == "core":
            blocks.append(entry)
        if _can_be_duplicate(entry):
            candidates.append(_Candidate.of(entry))
        if _is_unread(entry, read_before):
            unread[entry.kind] += 1
            unread_ids += [entry.id] if len(unread_ids) < _LISTED_UNREAD else []
    exact = tuple(_exact_duplicates(backend, candidates))
    near = tuple(_near_duplicates(candidates, exact))
    unread_report = Unread(unread_days, unread.total(), dict(sorted(unread.items())), tuple(unread_ids))
    contradictions, notes = find_contradictions(blocks)
    sizes = [Oversized(block.id, block.title, count_tokens(block.content), block_tokens) for block in blocks]
    oversized = tuple(size for size in sizes if size.tokens > _NEARLY_FULL * block_tokens)
    return AuditReport(namespace, entries, exact, near, unread_report, contradictions, oversized, notes)


def merge_duplicates(backend: MemoryBackend, report: AuditReport) -> list[MemoryEntry]:
    """Keep the oldest entry of each group of `duplicates`, mark the others as superseded by it, and return these.
    Entries that changed after the audit are skipped. Nothing is deleted."""
    merged: list[MemoryEntry] = []
    for group in report.duplicates:
        versions = dict(zip(group.ids, group.versions, strict=True))
        unchanged = [entry for entry in _live(backend, group.ids) if entry.version == versions[entry.id]]
        if not unchanged or unchanged[0].id != group.ids[0]:
            continue
        oldest, *others = unchanged
        updates = [_supersede(backend, entry, oldest.id) for entry in others if is_duplicate(entry, oldest)]
        superseded = [entry for entry in updates if entry]
        if _live(backend, [oldest.id]):
            merged += superseded
        else:  # the oldest was removed or superseded meanwhile: undo
            for entry in superseded:
                _supersede(backend, entry, None)
    return merged


def _supersede(backend: MemoryBackend, entry: MemoryEntry, by: str | None) -> MemoryEntry | None:
    """Return the changed entry, or None if another caller changed or removed the entry."""
    try:
        return backend.update(entry.id, {"superseded_by": by}, expected_version=entry.version)
    except (Conflict, NotFound):
        return None


def _live(backend: MemoryBackend, ids: Sequence[str]) -> list[MemoryEntry]:
    return [entry for entry in backend.get(ids) if is_live(entry)]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The fields of an entry that the search for duplicates needs."""

    id: str
    version: int
    place: str  # equal for entries that can be near-duplicates
    content: str
    digest: bytes  # of place and content; equal for exact duplicates

    @classmethod
    def of(cls, entry: MemoryEntry) -> _Candidate:
        """Return the candidate of an entry."""
        place = json.dumps([entry.tier == "core", entry.agent_id, entry.user_id, entry.project])
        digest = blake2b(f"{place}\0{entry.content}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return cls(entry.id, entry.version, place, entry.content, digest)


def _belongs_to(entry: MemoryEntry, user_id: str | None, project: str | None) -> bool:
    """True if the entry belongs to this project, or if no project is given."""
    if project is None:
        return True  # the scope has the user already
    return entry.user_id == user_id if entry.tier == "core" else entry.project == project  # a block has no project


def _can_be_duplicate(entry: MemoryEntry) -> bool:
    return entry.kind not in {*UNSEARCHED_KINDS, "message"} and entry.tier != "working" and entry.source is None


def _is_unread(entry: MemoryEntry, read_before: datetime) -> bool:
    if entry.tier == "core" or entry.kind in UNSEARCHED_KINDS or entry.read_count or entry.match_count:
        return False
    return entry.created_at is not None and entry.created_at <= read_before


def _exact_duplicates(backend: MemoryBackend, candidates: Sequence[_Candidate]) -> list[Duplicates]:
    """Return groups of entries with the same content, in which the first entry has all details of the other entries."""
    by_digest: dict[bytes, list[str]] = {}
    for candidate in candidates:
        by_digest.setdefault(candidate.digest, []).append(candidate.id)
    return [group for ids in by_digest.values() if len(ids) > 1 for group in _same_details(backend, ids)]


def _same_details(backend: MemoryBackend, ids: Sequence[str]) -> Iterator[Duplicates]:
    """Split entries with the same content into groups with the same details, by the rule that `store` uses."""
    groups: list[list[MemoryEntry]] = []
    for start in range(0, len(ids), _PAGE):
        for entry in backend.get(ids[start : start + _PAGE]):
            group = next((group for group in groups[:_MAX_VARIANTS] if is_duplicate(entry, group[0])), None)
            if group is None:
                groups.append([entry])
            else:
                group.append(entry)
    return (_duplicates(group, 1.0) for group in groups if len(group) > 1)


def _near_duplicates(candidates: Sequence[_Candidate], exact: Sequence[Duplicates]) -> Iterator[Duplicates]:
    """Yield groups of similar entries. Of each group of exact duplicates, only the first entry is compared."""
    repeated = {entry_id for group in exact for entry_id in group.ids[1:]}
    texts = [Text(n, item.place, item.content) for n, item in enumerate(candidates) if item.id not in repeated]
    for group in find_near_duplicates(texts):
        items = [candidates[n] for n in group.keys]
        same_words = len({normalize(item.content) for item in items}) == 1
        yield _duplicates(items, 1.0 if same_words else min(group.similarity, 0.999))


def _duplicates(items: Sequence[MemoryEntry] | Sequence[_Candidate], similarity: float) -> Duplicates:
    excerpt = " ".join(items[0].content[: 4 * _EXCERPT].split())[:_EXCERPT]
    ids, versions = tuple(item.id for item in items), tuple(item.version for item in items)
    return Duplicates(ids, versions, round(similarity, 3), excerpt)
