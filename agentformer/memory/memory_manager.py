"""`MemoryManager`: checks what callers pass in, and stores, searches, changes and removes entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.memory import validation
from agentformer.memory.core import CoreMemory
from agentformer.memory.hierarchical import HierarchicalMemory
from agentformer.memory.memory_cleaner import CleaningReport, MemoryCleaner
from agentformer.memory.usage import UsageCounter
from agentformer.memory.validation import MessageFields, Place, ScopeFields, StoredFields
from agentformer.records import fields
from agentformer.records.scopes import effective_salience
from agentformer.types import (
    DEFAULT_NAMESPACE,
    UNSEARCHED_KINDS,
    Decay,
    Hit,
    Hits,
    MemoryBackend,
    MemoryEntry,
    Query,
    Reference,
    Scope,
)

if TYPE_CHECKING:
    from agentformer.memory.audit import AuditReport
    from agentformer.memory.context.builder import Context, ContextBuilder
    from agentformer.memory.recall import Recall

Entries = list[MemoryEntry]  # inside the class, `list` is a method

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class PartBuilders:
    """Functions that build the parts of a `MemoryManager` for one call, so that other calls do not import them.

    `audit` takes `namespace`, `user_id` and `project`, and returns the report.
    """

    context_builder: Callable[[], ContextBuilder]
    recall: Callable[[], Recall]
    audit: Callable[..., AuditReport]


class MemoryManager:
    """Stores and searches entries. As thread-safe as its backend. A call stays inside one namespace.

    `place` below means the keyword arguments `namespace` ("default"), `session_id`, `agent_id`, `user_id` and
    `project`; a search does not filter by those that are not given. `decay_rates` are daily rates by category.
    `discard_originals` gets the digests of uploaded files whose documents were removed with a scope.
    """

    def __init__(
        self,
        backend: MemoryBackend,
        hierarchical: HierarchicalMemory,
        cleaner: MemoryCleaner,
        parts: PartBuilders,
        usage: UsageCounter,
        *,
        decay_rates: Mapping[str, float],
        discard_originals: Callable[[Iterable[str]], None],
    ) -> None:
        self._backend = backend
        self._cleaner = cleaner
        self._parts = parts
        self._usage = usage
        self._decay = Decay(dict(decay_rates))
        self._discard_originals = discard_originals
        self.hierarchical = hierarchical

    @property
    def core(self) -> CoreMemory:
        """The named blocks that are always in context."""
        return self.hierarchical.core

    def add_message(self, session_id: str, role: str, content: str, **values: Unpack[MessageFields]) -> MemoryEntry:
        """Store a message of a session; `role` is user, assistant, system or tool.

        `values` are `speaker`, `occurred_at` (aware datetime or ISO 8601 with a zone; now), `metadata`, `place` and the
        references of `store`. After every `Settings.clean_every` messages old ones are summarized. Raises
        `InvalidInput`."""
        return self.add_messages([{**values, "session_id": session_id, "role": role, "content": content}])[0]

    def add_messages(self, messages: Iterable[Mapping[str, Any]]) -> Entries:
        """Store messages, given as mappings of `add_message`'s arguments in order of time, in one transaction, all or
        none. Raises `InvalidInput`."""
        entries = [validation.new_message(message) for message in validation.mappings("messages", messages)]
        stored = [*self._backend.store(entries, replacing=validation.replaced(entries))] if entries else []
        for entry in stored:
            self._cleaner.message_added(entry)
        return stored

    def store(self, content: str, **values: Unpack[StoredFields]) -> MemoryEntry:
        """Store an entry; it is on disk when this returns, and every later search finds it.

        `values`: `tier` ("semantic"), `kind` ("fact"), `place`, `title`, `metadata` (JSON; a list under `aliases`
        holds other names to find it by), `category`, `occurred_at` (aware datetime or ISO 8601 with a zone),
        `salience` (0..1), `speaker`, `parent_id`, `pair_id`, and `source_type` with `source_id`: a record of the
        host application; earlier entries of that record are replaced.

        An equal fact is not stored twice: the existing entry is returned, its `repeat_count` increased by one.
        Raises `InvalidInput` naming the field, and `Conflict` for a core block that exists with another text.
        """
        return self.store_many([{**values, "content": content}])[0]

    def store_many(self, items: Iterable[str | Mapping[str, Any]], **common: Unpack[StoredFields]) -> list[MemoryEntry]:
        """Store many entries in one transaction, all or none, and return them in the order of `items`.

        An item is a content or a mapping of `store`'s arguments; `common` holds arguments for all items. Items of one
        `source_id` replace its earlier entries together.
        """
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            raise InvalidInput("items", f"must be a list of contents or mappings, got {type(items).__name__}")
        mappings = [{**common, **(item if isinstance(item, Mapping) else {"content": item})} for item in items]
        entries = [self.hierarchical.check_tier(validation.new_entry(values)) for values in mappings]
        if not entries:
            return []
        try:
            return list(self._backend.store(entries, replacing=validation.replaced(entries), unique=True))
        except Conflict as error:
            raise _store_conflict(entries) or error from None

    def search(
        self,
        text: str,
        *,
        limit: int = 10,
        min_score: float = 0.0,
        mode: str = "hybrid",
        relevant_only: bool = False,
        at: datetime | str | None = None,
        **scope: Unpack[ScopeFields],
    ) -> Hits:
        """Return the best `limit` entries of the scope, best first; see `Hit`.

        `scope`: `place`, `tiers`, `kinds`, `categories`, `metadata` (equality of keys), `occurred_from`,
        `occurred_to`, `parent_id`, `source_type`, `source_id`, `min_salience` (after decay) and `include_archived`.
        `mode` is `hybrid`, `dense` or `lexical`. A hybrid search drops hits that share no term with `text` and have a
        cosine below `Settings.noise_floor`; `relevant_only` drops every hit that is not relevant. Salience changes the
        ranking slightly, and the newest of contradicting facts comes first. Relative dates in `text` ("yesterday") are
        resolved from `at` (aware, or ISO 8601 with a zone; now). Raises `InvalidInput` naming the field.
        """
        fields.text("text", text)
        _check_ranking(min_score, mode)
        limit = fields.limit("limit", limit)
        query = Query(text, self._scope(scope), limit, mode=mode, at=fields.moment_in_zone("at", at))  # type: ignore[arg-type]
        hits = self._parts.recall().search(query, min_score=min_score, relevant_only=relevant_only)
        self._usage.count_matches(hit.entry.id for hit in hits)
        return hits

    def references(self, text: str, **options: Any) -> list[Reference]:
        """Search as `search` does, and return the host application's records of the hits, each once, best first."""
        return _references(self.search(text, **options))

    def get(self, entry_id: str) -> MemoryEntry:
        """Return the entry of this id, archived or not. Raises `NotFound`."""
        self._usage.flush_if_due([fields.name("entry_id", entry_id)])
        entry = _entry(self._backend, entry_id)
        self._usage.count_gets([entry_id])
        return entry

    def list(self, *, limit: int = 100, after: str | None = None, **scope: Unpack[ScopeFields]) -> Entries:
        """Return entries of the scope (see `search`) in order of id, which is the order of storing, after the id
        `after`. For the tier `working` of a session, return its last messages and notes."""
        after = fields.text("after", after or "", fields.MAX_NAME)
        limit = fields.limit("limit", limit)
        wanted = self._scope(scope)
        if wanted.tiers == ("working",) and wanted.session_id is not None:
            entries = sorted(self.hierarchical.working(wanted), key=lambda entry: entry.id)
            return [entry for entry in entries if entry.id > after][:limit]
        self._usage.flush_if_due()
        return [*self._backend.list(wanted, after=after, limit=limit)]

    def recent(self, limit: int = 10, **scope: Unpack[ScopeFields]) -> Entries:
        """Return the newest episodic entries, newest first, summarized or not."""
        return self.hierarchical.recent(self._scope(scope), fields.limit("limit", limit))

    def relevant(self, query: str, limit: int = 10, **scope: Unpack[ScopeFields]) -> Hits:
        """Search the episodic entries, summarized or not."""
        fields.text("query", query)
        hits = self.hierarchical.relevant(query, self._scope(scope), fields.limit("limit", limit))
        self._usage.count_matches(hit.entry.id for hit in hits)
        return hits

    def history(self, entry_id: str) -> Entries:
        """Return the former versions of an entry, oldest first. Raises `NotFound`."""
        _entry(self._backend, entry_id)
        return [*self._backend.history(entry_id)]

    def transcript(self, session_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Entries:
        """Return the messages of a session word for word, in order of time, summarized or not."""
        session_id, namespace = fields.name("session_id", session_id), fields.name("namespace", namespace)
        return self.hierarchical.transcript(session_id, namespace=namespace)

    def build_context(
        self, task: str, conversation: Any = (), max_tokens: int | None = None, **place: Unpack[Place]
    ) -> Context:
        """Return chat messages of at most `max_tokens` (`Settings.context_tokens`) and a report of their contents; see
        `ContextBuilder.build`. Included entries count as read."""
        context = self._parts.context_builder().build(task, conversation, max_tokens, **place)
        self._usage.count_reads(entry_id for ids in context.report.included.values() for entry_id in ids)
        return context

    def update(self, entry_id: str, *, expected_version: int | None = None, **changes: Any) -> MemoryEntry:
        """Change fields of an entry; its former version is kept in its history.

        Raises `NotFound`, `InvalidInput`, and `Conflict` if the stored version is not `expected_version`.
        """
        former = _changeable(self._backend, entry_id)
        checked = validation.changes(former, changes)
        self.hierarchical.check_update(former, checked)
        return self._backend.update(entry_id, checked, expected_version)

    def supersede(self, old_id: str, new_id: str) -> MemoryEntry:
        """Replace an older entry by a newer one in search results; the older one stays available by its id.

        Returns the older entry. Raises `NotFound`, `InvalidInput`, and `Conflict` if one is superseded already.
        """
        old, new = _changeable(self._backend, old_id), _changeable(self._backend, new_id)
        _check_supersession(old, new)
        return self._backend.update(old_id, {"superseded_by": new_id}, old.version)

    def remove(self, what: str | Scope, *, expected_version: int | None = None) -> int:
        """Delete an entry, or everything in a scope, with parts, vectors, terms, history and files; return the count.

        A document with a part in the scope is deleted as a whole. If an original of a summary is deleted, the summary
        is deleted too and its other originals are restored. Raises `NotFound`, `Conflict` if the stored version is not
        `expected_version`, and `InvalidInput` for an uploaded document's id, which `rag.remove` takes.
        """
        if isinstance(what, Scope):
            scope = dataclasses.replace(validation.checked(what), include_archived=True)
            deleted, digests = _remove_scope(self._backend, scope)
            self._discard_originals(digests)
            return deleted
        _changeable(self._backend, what)
        if deleted := self._backend.remove([what], expected_version):
            return deleted
        raise NotFound(f"there is no entry {what}")

    def mark_read(self, ids: Sequence[str]) -> None:
        """Count entries as read, by a person or a model. Raises `NotFound`."""
        for entry_id in fields.names("ids", ids):
            _entry(self._backend, entry_id)
        self._usage.count_reads(ids)
        self._usage.flush()

    def clean(self, *, namespace: str | None = None, session_id: str | None = None) -> CleaningReport:
        """Replace old episodic entries by summaries, in one session, one namespace, or everywhere."""
        namespace = fields.optional_name("namespace", namespace)
        return self._cleaner.run(namespace=namespace, session_id=fields.optional_name("session_id", session_id))

    def restore(self, summary_id: str) -> Entries:
        """Restore the originals of a summary unchanged and archive the summary, or restore a superseded entry.

        Raises `NotFound`, `InvalidInput` for an entry that is neither, and `Conflict` if it is restored already.
        """
        entry = _entry(self._backend, summary_id)
        if entry.superseded_by is not None:
            return [self._backend.update(summary_id, {"superseded_by": None}, entry.version)]
        return self._cleaner.restore(summary_id)

    def audit(
        self, *, namespace: str = DEFAULT_NAMESPACE, user_id: str | None = None, project: str | None = None
    ) -> AuditReport:
        """Report duplicates, unread entries, and contradicting or oversized core blocks, optionally of one user or
        project. Uses no language model and changes nothing."""
        self._usage.flush()
        owner = {"user_id": user_id, "project": project}
        checked = {name: fields.optional_name(name, value) for name, value in owner.items()}
        return self._parts.audit(namespace=fields.name("namespace", namespace), **checked)

    def effective_salience(self, entry: MemoryEntry) -> float:
        """Return the salience of an entry after decay until now, 0..1."""
        return effective_salience(entry, self._decay)

    def reindex(self) -> int:
        """Embed entries that still wait for their vectors; return how many wait afterwards."""
        return self._backend.embed_pending()

    def status(self) -> dict[str, Any]:
        """Return counts and the state of the parts, as JSON values."""
        self._usage.flush()
        return {**self._backend.status(), "cleaner": self._cleaner.status()}

    def close(self) -> None:
        """Write the usage counts that are still in memory. The backend stays open."""
        self._usage.flush()

    def _scope(self, values: Mapping[str, Any]) -> Scope:
        return validation.scope_from(values, self._decay)


def _store_conflict(entries: Sequence[MemoryEntry]) -> Conflict | None:
    """Return an error that explains a conflict of entries with core blocks; None if there is no block."""
    blocks = [entry.title for entry in entries if entry.tier == "core" and entry.title]
    if not blocks:
        return None
    return Conflict(f"one of the core blocks {blocks} exists; edit it with core.append or core.replace")


def _entry(backend: MemoryBackend, entry_id: str) -> MemoryEntry:
    entries = backend.get([fields.name("entry_id", entry_id)])
    if not entries:
        raise NotFound(f"there is no entry {entry_id}")
    return entries[0]


def _changeable(backend: MemoryBackend, entry_id: str) -> MemoryEntry:
    """Return an entry that is not part of a document: citations are exact only while documents do not change."""
    entry = _entry(backend, entry_id)
    if entry.kind in UNSEARCHED_KINDS or entry.source is not None:
        raise InvalidInput(
            "entry_id", f"{entry_id} is part of an uploaded document; use rag.upload to replace it, or rag.remove"
        )
    return entry


def _remove_scope(backend: MemoryBackend, scope: Scope) -> tuple[int, list[str]]:
    """Remove a scope and its documents; return the number of entries and the digests of the documents' files."""
    documents = sorted({*_documents_of(backend, scope)})
    digests = [str(entry.metadata["sha256"]) for entry in backend.get(documents)]
    deleted = backend.remove(documents) if documents else 0
    return deleted + backend.remove(scope), digests


def _documents_of(backend: MemoryBackend, scope: Scope) -> Iterator[str]:
    """Yield the ids of the documents that have a part in the scope."""
    after = ""
    while page := backend.list(scope, after=after, limit=_PAGE):
        for entry in page:
            if entry.source is not None:
                yield entry.source.document_id
            elif entry.kind == "document":
                yield entry.id
        after = page[-1].id


def _check_ranking(min_score: Any, mode: Any) -> None:
    if not isinstance(min_score, (int, float)) or min_score != min_score:  # NaN does not equal itself
        raise InvalidInput("min_score", f"must be a number, got {min_score!r}")
    if mode not in ("hybrid", "dense", "lexical"):
        raise InvalidInput("mode", f"must be hybrid, dense or lexical, got {mode!r}")


def _references(hits: Iterable[Hit]) -> list[Reference]:
    """Return the host application's records of the hits, each once, in order."""
    references: dict[tuple[str, str], Reference] = {}
    for hit in hits:
        entry = hit.entry
        if entry.source_type is not None and entry.source_id is not None:
            record = (entry.source_type, entry.source_id)
            references.setdefault(record, Reference(*record, entry.id, hit.score, entry.pair_id, entry.parent_id))
    return list(references.values())


def _check_supersession(old: MemoryEntry, new: MemoryEntry) -> None:
    if old.id == new.id or (old.namespace, old.user_id) != (new.namespace, new.user_id):
        raise InvalidInput("new_id", "must be another entry of the same namespace and the same user")
    if "core" in (old.tier, new.tier):
        raise InvalidInput("old_id", "core blocks are not superseded; edit them with core.append or core.replace")
    if old.derived_from and old.kind == "summary" and old.archived_at is None:
        raise InvalidInput("old_id", f"{old.id} summarizes other entries; update its text, or restore it first")
    for entry in (old, new):
        if entry.superseded_by is not None:
            raise Conflict(f"{entry.id} is already superseded by {entry.superseded_by}")
