"""`MemoryManager`: validates arguments of callers, and stores, searches, changes and removes entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.memory import validation
from agentformer.memory.backends import all_entries
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
    Hits,
    MemoryBackend,
    MemoryEntry,
    Query,
    Reference,
    Scope,
)

if TYPE_CHECKING:
    from agentformer.memory.audit import AuditReport
    from agentformer.memory.context.builder import ContextBuilder
    from agentformer.memory.context.plan import Context
    from agentformer.memory.recall import Recall

Entries = list[MemoryEntry]  # inside the class, `list` is a method


@dataclass(frozen=True, slots=True)
class PartBuilders:
    """Functions that build parts of a `MemoryManager` for one call, so that other calls do not import these parts.
    `audit` takes `namespace`, `user_id` and `project`, and returns the report."""

    context_builder: Callable[[], ContextBuilder]
    recall: Callable[[], Recall]
    audit: Callable[..., AuditReport]


class MemoryManager:
    """Stores and searches entries. As thread-safe as its backend. A call uses only one namespace. Below, `place` means
    the keyword arguments `namespace` ("default"), `session_id`, `agent_id`, `user_id` and `project`. A search does not
    filter by arguments that are not given. `decay_rates` are daily rates by category. If a scope with documents is
    removed, `discard_originals` is called with the digests of the uploaded files."""

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
        self.core = hierarchical.core  # the named blocks that are in every context

    def add_message(self, session_id: str, role: str, content: str, **values: Unpack[MessageFields]) -> MemoryEntry:
        """Store a message of a session. `role` is user, assistant, system or tool. `values` are `speaker`,
        `occurred_at` (aware datetime or ISO 8601 with a zone; default: now), `metadata`, `place`, and the references of
        `store`. After every `Settings.clean_every` messages, old messages are summarized. Raises `InvalidInput`."""
        return self.add_messages([{**values, "session_id": session_id, "role": role, "content": content}])[0]

    def add_messages(self, messages: Iterable[Mapping[str, Any]]) -> Entries:
        """Store messages in one transaction, or none if one is invalid. Each message is a mapping with the arguments of
        `add_message`. The messages are in order of time. Raises `InvalidInput`."""
        entries = [validation.new_message(message) for message in validation.mappings("messages", messages)]
        stored = [*self._backend.store(entries, replacing=validation.replaced(entries))] if entries else []
        for entry in stored:
            self._cleaner.message_added(entry)
        return stored

    def store(self, content: str, **values: Unpack[StoredFields]) -> MemoryEntry:
        """Store an entry. When the call returns, the entry is on disk, and every later search can find it.

        `values`: `tier` ("semantic"), `kind` ("fact"), `place`, `title`, `metadata` (JSON; a list under `aliases` holds
        other names of the entry), `category`, `occurred_at` (aware datetime or ISO 8601 with a zone), `salience`
        (0..1), `speaker`, `parent_id`, `pair_id`, and `source_type` and `source_id`, which name a record of the host
        application. The new entry replaces earlier entries of the same record.

        If an equal fact is stored already, its `repeat_count` is increased, and it is returned instead. Raises
        `InvalidInput` with the name of the field. Raises `Conflict` if a core block of this name exists with another
        text.
        """
        return self.store_many([{**values, "content": content}])[0]

    def store_many(self, items: Iterable[str | Mapping[str, Any]], **common: Unpack[StoredFields]) -> list[MemoryEntry]:
        """Store many entries in one transaction, and return them in the order of `items`. An item is a content, or a
        mapping with the arguments of `store`. `common` holds arguments for all items. All items with the same
        `source_id` together replace the earlier entries of that record."""
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            raise InvalidInput("items", f"must be a list of contents or mappings, got {type(items).__name__}")
        mappings = [{**common, **(item if isinstance(item, Mapping) else {"content": item})} for item in items]
        entries = [self.hierarchical.check_tier(validation.new_entry(values)) for values in mappings]
        if not entries:
            return []
        try:
            return list(self._backend.store(entries, replacing=validation.replaced(entries), unique=True))
        except Conflict as error:
            if blocks := [entry.title for entry in entries if entry.tier == "core" and entry.title]:
                raise Conflict(
                    f"one of the core blocks {blocks} exists; edit it with core.append or core.replace"
                ) from None
            raise error from None

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

        `scope`: `place`, `tiers`, `kinds`, `categories`, `metadata` (equality of keys), `occurred_from`, `occurred_to`,
        `parent_id`, `source_type`, `source_id`, `min_salience` (after decay) and `include_archived`. `mode` is
        `hybrid`, `dense` or `lexical`. A hybrid search drops hits that share no term with `text` and have a cosine
        below `Settings.noise_floor`. With `relevant_only`, every hit that is not relevant is dropped. Salience has a
        small influence on the ranking. If facts contradict each other, the newest fact is ranked first. Relative dates
        in `text` ("yesterday") are resolved at the moment `at` (aware datetime or ISO 8601 with a zone; default: now).
        Raises `InvalidInput` with the name of the field.
        """
        fields.text("text", text)
        _check_ranking(min_score, mode)
        limit = fields.limit("limit", limit)
        query = Query(text, self._scope(scope), limit, mode=mode, at=fields.moment_in_zone("at", at))  # type: ignore[arg-type]
        hits = self._parts.recall().search(query, min_score=min_score, relevant_only=relevant_only)
        self._usage.count((hit.entry.id for hit in hits), matches=1)
        return hits

    def references(self, text: str, **options: Any) -> list[Reference]:
        """Search as `search` does. Return the host application's records of the hits, best first, without
        repetitions."""
        references: dict[tuple[str, str], Reference] = {}
        for hit in self.search(text, **options):
            entry = hit.entry
            if entry.source_type is not None and entry.source_id is not None:
                record = (entry.source_type, entry.source_id)
                references.setdefault(record, Reference(*record, entry.id, hit.score, entry.pair_id, entry.parent_id))
        return [*references.values()]

    def get(self, entry_id: str) -> MemoryEntry:
        """Return the entry of this id. The entry can be archived. Raises `NotFound`."""
        self._usage.flush_if_due([fields.name("entry_id", entry_id)])
        entry = _entry(self._backend, entry_id)
        self._usage.count([entry_id], others=1)
        return entry

    def list(self, *, limit: int = 100, after: str | None = None, **scope: Unpack[ScopeFields]) -> Entries:
        """Return entries of the scope (see `search`) with ids above `after`, in the order of their ids, which is the
        order of storing. For the tier `working` of a session, return its last messages and notes."""
        after = fields.text("after", after or "", fields.MAX_NAME)
        limit = fields.limit("limit", limit)
        wanted = self._scope(scope)
        if wanted.tiers == ("working",) and wanted.session_id is not None:
            entries = sorted(self.hierarchical.working(wanted), key=lambda entry: entry.id)
            return [entry for entry in entries if entry.id > after][:limit]
        self._usage.flush_if_due()
        return [*self._backend.list(wanted, after=after, limit=limit)]

    def recent(self, limit: int = 10, **scope: Unpack[ScopeFields]) -> Entries:
        """Return the newest episodic entries, newest first. Summarized entries are included."""
        return self.hierarchical.recent(self._scope(scope), fields.limit("limit", limit))

    def relevant(self, query: str, limit: int = 10, **scope: Unpack[ScopeFields]) -> Hits:
        """Search the episodic entries. Summarized entries are included."""
        fields.text("query", query)
        hits = self.hierarchical.relevant(query, self._scope(scope), fields.limit("limit", limit))
        self._usage.count((hit.entry.id for hit in hits), matches=1)
        return hits

    def history(self, entry_id: str) -> Entries:
        """Return the former versions of an entry, oldest first. Raises `NotFound`."""
        _entry(self._backend, entry_id)
        return [*self._backend.history(entry_id)]

    def transcript(self, session_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Entries:
        """Return the messages of a session with their original text, in order of time, including summarized ones."""
        session_id, namespace = fields.name("session_id", session_id), fields.name("namespace", namespace)
        return self.hierarchical.transcript(session_id, namespace=namespace)

    def build_context(
        self, task: str, conversation: Any = (), max_tokens: int | None = None, **place: Unpack[Place]
    ) -> Context:
        """Return chat messages of at most `max_tokens` (default: `Settings.context_tokens`), and a report of their
        contents; see `ContextBuilder.build`. The included entries count as read."""
        context = self._parts.context_builder().build(task, conversation, max_tokens, **place)
        self._usage.count((entry_id for ids in context.report.included.values() for entry_id in ids), reads=1)
        return context

    def update(self, entry_id: str, *, expected_version: int | None = None, **changes: Any) -> MemoryEntry:
        """Change fields of an entry, and add its former version to its history. Raises `NotFound` and `InvalidInput`.
        Raises `Conflict` if the stored version is not `expected_version`."""
        former = _changeable(self._backend, entry_id)
        checked = validation.changes(former, changes)
        self.hierarchical.check_update(former, checked)
        return self._backend.update(entry_id, checked, expected_version)

    def supersede(self, old_id: str, new_id: str) -> MemoryEntry:
        """Replace an older entry by a newer entry in search results, and return the older entry. Raises `NotFound` and
        `InvalidInput`. Raises `Conflict` if one of the entries is superseded already."""
        old, new = _changeable(self._backend, old_id), _changeable(self._backend, new_id)
        _check_supersession(old, new)
        return self._backend.update(old_id, {"superseded_by": new_id}, old.version)

    def remove(self, what: str | Scope, *, expected_version: int | None = None) -> int:
        """Delete an entry, or everything in a scope, with parts, vectors, terms, history and files. Return the number
        of deleted entries.

        If a part of a document is in the scope, the complete document is deleted. If an original of a summary is
        deleted, the summary is deleted too, and its other originals are restored. Raises `NotFound`. Raises `Conflict`
        if the stored version is not `expected_version`. Raises `InvalidInput` for the id of an uploaded document; use
        `rag.remove` for documents.
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
        """Count that a person or a model read these entries. Raises `NotFound`."""
        for entry_id in fields.names("ids", ids):
            _entry(self._backend, entry_id)
        self._usage.count(ids, reads=1)
        self._usage.flush()

    def clean(self, *, namespace: str | None = None, session_id: str | None = None) -> CleaningReport:
        """Replace old episodic entries by summaries, in one session, one namespace, or everywhere."""
        namespace = fields.optional_name("namespace", namespace)
        return self._cleaner.run(namespace=namespace, session_id=fields.optional_name("session_id", session_id))

    def restore(self, summary_id: str) -> Entries:
        """Restore the originals of a summary unchanged and archive the summary, or restore a superseded entry. Raises
        `NotFound`, `InvalidInput` for any other entry, and `Conflict` if the entry is restored already."""
        entry = _entry(self._backend, summary_id)
        if entry.superseded_by is not None:
            return [self._backend.update(summary_id, {"superseded_by": None}, entry.version)]
        return [*self._backend.restore(summary_id)]

    def audit(
        self, *, namespace: str = DEFAULT_NAMESPACE, user_id: str | None = None, project: str | None = None
    ) -> AuditReport:
        """Report duplicates, unread entries, contradictions between core blocks, and oversized core blocks, of all
        entries or of one user or project. The audit uses no language model and changes nothing."""
        self._usage.flush()
        return self._parts.audit(
            namespace=fields.name("namespace", namespace),
            user_id=fields.optional_name("user_id", user_id),
            project=fields.optional_name("project", project),
        )

    def effective_salience(self, entry: MemoryEntry) -> float:
        """Return the salience of an entry after decay until now, 0..1."""
        return effective_salience(entry, self._decay)

    def reindex(self) -> int:
        """Embed entries that wait for their vectors. Return how many entries still wait."""
        return self._backend.embed_pending()

    def status(self) -> dict[str, Any]:
        """Return counts and the state of the parts, as JSON values."""
        self._usage.flush()
        return {**self._backend.status(), "cleaner": self._cleaner.status()}

    def close(self) -> None:
        """Write the usage counts that are only in memory. The backend is not closed."""
        self._usage.flush()

    def _scope(self, values: Mapping[str, Any]) -> Scope:
        return validation.scope_from(values, self._decay)


def _entry(backend: MemoryBackend, entry_id: str) -> MemoryEntry:
    if entries := backend.get([fields.name("entry_id", entry_id)]):
        return entries[0]
    raise NotFound(f"there is no entry {entry_id}")


def _changeable(backend: MemoryBackend, entry_id: str) -> MemoryEntry:
    """Return the entry. Raise `InvalidInput` if it is part of a document, which must not change under its citations."""
    entry = _entry(backend, entry_id)
    if entry.kind in UNSEARCHED_KINDS or entry.source is not None:
        raise InvalidInput(
            "entry_id", f"{entry_id} is part of an uploaded document; use rag.upload to replace it, or rag.remove"
        )
    return entry


def _remove_scope(backend: MemoryBackend, scope: Scope) -> tuple[int, list[str]]:
    """Remove a scope with its documents. Return the number of removed entries, and the digests of the documents'
    files."""
    parts = (entry for entry in all_entries(backend, scope) if entry.source or entry.kind == "document")
    documents = sorted({entry.source.document_id if entry.source else entry.id for entry in parts})
    digests = [str(entry.metadata["sha256"]) for entry in backend.get(documents)]
    deleted = backend.remove(documents) if documents else 0
    return deleted + backend.remove(scope), digests


def _check_ranking(min_score: Any, mode: Any) -> None:
    if not isinstance(min_score, (int, float)) or min_score != min_score:  # NaN does not equal itself
        raise InvalidInput("min_score", f"must be a number, got {min_score!r}")
    if mode not in ("hybrid", "dense", "lexical"):
        raise InvalidInput("mode", f"must be hybrid, dense or lexical, got {mode!r}")


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
