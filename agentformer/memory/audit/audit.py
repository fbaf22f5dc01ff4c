"""What a person should look at in a memory: duplicates, entries never read, contradictions, oversized blocks.

No language model is asked, and nothing is changed; `merge_duplicates` is the one change that may follow, when asked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from agentformer.errors import Conflict, NotFound
from agentformer.memory.audit.contradictions import Contradiction, contradictions
from agentformer.memory.audit.near_duplicates import Text, near_duplicates, normalised
from agentformer.records.duplicates import same
from agentformer.types import UNSEARCHED_KINDS, MemoryBackend, MemoryEntry, Scope

UNREAD_DAYS = 30  # an entry that nobody has used for so long is worth a look
_SHOWN = 20  # unread entries that are named; all are counted
_EXCERPT = 200  # code points of a duplicate that are shown
_FULL = 0.8  # of a block's limit: the next edits will not fit
_PAGE = 1000  # entries read at a time
_VARIANTS = 20  # of one text that differ in details: the first ones, to which further entries are compared


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Entries that say the same, oldest first. `versions` are theirs, as they were judged."""

    ids: tuple[str, ...]
    versions: tuple[int, ...]
    similarity: float  # 0..1, of the entry that is least like the first; 1.0: the same words
    excerpt: str  # of the first


@dataclass(frozen=True, slots=True)
class Unread:
    """Entries that no search has found and nobody has read since they were stored, `days` ago or more."""

    days: int
    count: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    ids: tuple[str, ...] = ()  # the oldest few


@dataclass(frozen=True, slots=True)
class Oversized:
    """A core block that is over its limit, or nearly."""

    id: str
    title: str
    tokens: int
    limit: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was found among the live entries of a namespace.

    `duplicates` equal their first entry in text, place and every detail, so that they can be merged;
    `near_duplicates` are alike, and a person has to decide. Messages, the parts of documents, and entries of the
    working tier are no duplicates: people repeat themselves, and documents quote each other.
    """

    namespace: str
    entries: int
    duplicates: tuple[Duplicates, ...] = ()
    near_duplicates: tuple[Duplicates, ...] = ()
    unread: Unread = field(default_factory=lambda: Unread(UNREAD_DAYS))
    contradictions: tuple[Contradiction, ...] = ()
    oversized: tuple[Oversized, ...] = ()
    notes: tuple[str, ...] = ()  # what was not looked at, and why


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
    """Look through the live entries of a namespace, or of a user and a project in it. Changes nothing. `at` is the
    moment to judge from; None is now."""
    before = (at or datetime.now(UTC)) - timedelta(days=unread_days)
    seen: list[_Seen] = []
    blocks: list[MemoryEntry] = []
    unread: Counter[str] = Counter()
    unread_ids: list[str] = []
    entries = 0
    for entry in _live(backend, namespace, user_id, project):
        entries += 1
        if entry.tier == "core":
            blocks.append(entry)
        if _may_repeat(entry):
            seen.append(_Seen.of(entry))
        if _never_read(entry, before):
            unread[entry.kind] += 1
            unread_ids += [entry.id] if len(unread_ids) < _SHOWN else []
    exact = _exact(backend, seen)
    found, notes = contradictions(blocks)
    return AuditReport(
        namespace,
        entries,
        duplicates=tuple(exact),
        near_duplicates=tuple(_near(seen, exact)),
        unread=Unread(unread_days, unread.total(), dict(sorted(unread.items())), tuple(unread_ids)),
        contradictions=found,
        oversized=tuple(_oversized(blocks, count_tokens, block_tokens)),
        notes=notes,
    )


def merge_duplicates(backend: MemoryBackend, report: AuditReport) -> list[MemoryEntry]:
    """Let the oldest entry of each group of `duplicates` stand for the others: they are superseded by it, and
    nothing is deleted. Returns the superseded entries.

    What was changed since the audit is left alone.
    """
    merged: list[MemoryEntry] = []
    for group in report.duplicates:
        versions = dict(zip(group.ids, group.versions, strict=True))
        live = [entry for entry in backend.get(group.ids) if entry.archived_at is None and entry.superseded_by is None]
        unchanged = [entry for entry in live if entry.version == versions[entry.id]]
        if not unchanged or unchanged[0].id != group.ids[0]:
            continue
        kept, *others = unchanged
        done = [gone for other in others if same(other, kept) and (gone := _supersede(backend, other, kept.id))]
        if _stands(backend, kept.id):
            merged += done
        else:  # forgotten or superseded meanwhile: what it stood for comes back
            for entry in done:
                _supersede(backend, entry, None)
    return merged


def _supersede(backend: MemoryBackend, entry: MemoryEntry, by: str | None) -> MemoryEntry | None:
    """The changed entry; None when somebody else has changed or removed it."""
    try:
        return backend.update(entry.id, {"superseded_by": by}, expected_version=entry.version)
    except (Conflict, NotFound):
        return None


def _stands(backend: MemoryBackend, entry_id: str) -> bool:
    return any(entry.archived_at is None and entry.superseded_by is None for entry in backend.get([entry_id]))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of each entry while the others are read."""

    id: str
    version: int
    place: str  # near-duplicates share it
    content: str
    digest: bytes  # of content and place in full: exact duplicates share it

    @classmethod
    def of(cls, entry: MemoryEntry) -> _Seen:
        place = json.dumps([entry.tier == "core", entry.agent_id, entry.user_id, entry.project])
        digest = blake2b(f"{place}\0{entry.content}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return cls(entry.id, entry.version, place, entry.content, digest)


def _live(backend: MemoryBackend, namespace: str, user_id: str | None, project: str | None) -> Iterator[MemoryEntry]:
    after = ""
    while page := backend.list(Scope(namespace, user_id=user_id), after=after, limit=_PAGE):
        yield from (entry for entry in page if _belongs(entry, user_id, project))
        after = page[-1].id


def _belongs(entry: MemoryEntry, user_id: str | None, project: str | None) -> bool:
    """Whether an entry is of this project, if one is meant; core blocks have none, and are the user's or nobody's."""
    if project is None:
        return True
    return entry.user_id == user_id if entry.tier == "core" else entry.project == project


def _may_repeat(entry: MemoryEntry) -> bool:
    if entry.kind in UNSEARCHED_KINDS or entry.kind == "message" or entry.tier == "working":
        return False
    return entry.source is None


def _never_read(entry: MemoryEntry, before: datetime) -> bool:
    if entry.tier == "core" or entry.kind in UNSEARCHED_KINDS or entry.read_count or entry.match_count:
        return False
    return entry.created_at is not None and entry.created_at <= before


def _exact(backend: MemoryBackend, seen: Sequence[_Seen]) -> list[Duplicates]:
    """Groups in which every entry says what the first one says, and nothing that it does not."""
    by_digest: dict[bytes, list[str]] = {}
    for item in seen:
        by_digest.setdefault(item.digest, []).append(item.id)
    groups: list[Duplicates] = []
    for ids in by_digest.values():
        groups += _same(backend, ids) if len(ids) > 1 else []
    return groups


def _same(backend: MemoryBackend, ids: Sequence[str]) -> Iterator[Duplicates]:
    """Groups of entries with one content that are the same in every detail too, by the rule of storing."""
    led: list[list[MemoryEntry]] = []
    for start in range(0, len(ids), _PAGE):
        for entry in backend.get(ids[start : start + _PAGE]):
            group = next((group for group in led[:_VARIANTS] if same(entry, group[0])), None)
            if group is None:
                led.append([entry])
            else:
                group.append(entry)
    for group in led:
        if len(group) > 1:
            yield _duplicates([(entry.id, entry.version) for entry in group], 1.0, group[0].content)


def _near(seen: Sequence[_Seen], exact: Sequence[Duplicates]) -> Iterator[Duplicates]:
    """Groups of entries that are alike; an exact group takes part by its first entry only."""
    repeated = {entry_id for group in exact for entry_id in group.ids[1:]}
    texts = [Text(n, item.place, item.content) for n, item in enumerate(seen) if item.id not in repeated]
    for group in near_duplicates(texts):
        items = [seen[n] for n in group.keys]
        words = {normalised(item.content) for item in items}
        similarity = 1.0 if len(words) == 1 else min(group.similarity, 0.999)
        yield _duplicates([(item.id, item.version) for item in items], similarity, items[0].content)


def _duplicates(versions: Sequence[tuple[str, int]], similarity: float, content: str) -> Duplicates:
    ids, numbers = zip(*versions, strict=True)
    return Duplicates(ids, numbers, round(similarity, 3), " ".join(content[: 4 * _EXCERPT].split())[:_EXCERPT])


def _oversized(
    blocks: Sequence[MemoryEntry], count_tokens: Callable[[str], int], block_tokens: int
) -> Iterator[Oversized]:
    for block in blocks:
        tokens = count_tokens(block.content)
        if tokens > _FULL * block_tokens:
            yield Oversized(block.id, block.title, tokens, block_tokens)
