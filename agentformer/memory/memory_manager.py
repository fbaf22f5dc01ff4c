"""`MemoryManager`: checks the arguments of callers, and stores, searches, changes and removes entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.lazy import Lazy
from agentformer.memory import validation
from agentformer.memory.backends import all_entries, is_expired
from agentformer.memory.batches import BatchOperations, changeable, existing
from agentformer.memory.hierarchical import HierarchicalMemory
from agentformer.memory.learning.journal import repeats
from agentformer.memory.memory_cleaner import CleaningReport, MemoryCleaner
from agentformer.memory.usage import UsageCounter
from agentformer.memory.validation import CleaningScope, MessageFields, Place, ScopeFields, StoredFields
from agentformer.records import fields
from agentformer.records.offers import status_of, vectors_of
from agentformer.records.scopes import effective_salience
from agentformer.search.reading import existing_document
from agentformer.types import (
    DEFAULT_NAMESPACE,
    RESERVED_KINDS,
    Condition,
    Decay,
    Hit,
    Hits,
    MemoryBackend,
    MemoryEntry,
    Reference,
    Scope,
    Where,
)

if TYPE_CHECKING:
    from agentformer.memory.audit import Auditor, AuditReport
    from agentformer.memory.context.blocks import Context
    from agentformer.memory.context.builder import ContextBuilder
    from agentformer.memory.learning import LearningReport, LearningRun, UndoneLearning
    from agentformer.memory.learning.learner import Learner
    from agentformer.memory.learning.profile import Profile
    from agentformer.memory.recall import Recall

Entries = list[MemoryEntry]  # needed because `list` is a method inside the class
_IN_FILTER = 490  # values of one filter


@dataclass(frozen=True, slots=True)
class LazyParts:
    """The parts of a `MemoryManager` that only a few calls need. Other calls do not wait for their import. `learns` is
    True if facts are learnt when messages are added."""

    recall: Lazy[Recall]
    contexts: Lazy[ContextBuilder]
    auditor: Lazy[Auditor]
    learner: Lazy[Learner]
    learns: bool


class MemoryManager(BatchOperations):
    """Stores and searches entries. Thread-safe if its backend is. `decay_rates` maps each category to the share of the
    salience (importance) that remains after a day without use. `delete_originals` deletes the files of documents."""

    def __init__(
        self,
        backend: MemoryBackend,
        hierarchical: HierarchicalMemory,
        cleaner: MemoryCleaner,
        parts: LazyParts,
        usage: UsageCounter,
        *,
        decay_rates: Mapping[str, float],
        delete_originals: Callable[[], None],
    ) -> None:
        super().__init__(backend, hierarchical, usage, Decay(dict(decay_rates)))
        self._cleaner = cleaner
        self._parts = parts
        self._delete_originals = delete_originals
        self.core = hierarchical.core  # the named blocks that are in every context

    def add_message(self, session_id: str, role: str, content: str, **values: Unpack[MessageFields]) -> MemoryEntry:
        """Store a message of a session and return its entry. `role` is user, assistant, system or tool. The default of
        `occurred_at` is now. The other `values` are described in `store`. After each `Settings.clean_every` messages of
        a session, old messages are summarized. Raises `InvalidInput` for an invalid argument.

        >>> af.memory.add_message("monday", "user", "Hello!", speaker="Aino").speaker
        'Aino'
        """
        return self.add_messages([{**values, "session_id": session_id, "role": role, "content": content}])[0]

    def add_messages(self, messages: Iterable[Mapping[str, Any]]) -> Entries:
        """Store messages in one transaction, and return their entries. Each item is a mapping with the arguments of
        `add_message`; the items are in order of time. Standing instructions of users, such as "Always answer in metric
        units.", are also stored as entries of the kind `instruction`. If one item is invalid, raises `InvalidInput` and
        stores none."""
        checked = validation.mappings("messages", messages)
        return self.add_checked([validation.new_message(message) for message in checked])

    def add_checked(self, entries: Sequence[MemoryEntry]) -> Entries:
        """Store entries that `validation` has built, in one transaction, and return them."""
        stored = list(self._backend.store(entries, replacing=validation.replaced(entries))) if entries else []
        asked = [entry for entry in stored if entry.kind == "message" and entry.role == "user"]
        if asked and (instructions := [*self._parts.recall.get().instructions(asked)]):
            _store_unique(self._backend, instructions)
        for entry in stored:
            if entry.kind == "message":
                self._cleaner.message_added(entry)
                if self._parts.learns:
                    self._parts.learner.get().message_added(entry)
        return stored

    def store(self, content: str, **values: Unpack[StoredFields]) -> MemoryEntry:
        """Store an entry and return it. After the call, the entry is on disk, and every search can find it.

        `values` can contain `tier` (default: "semantic"), `kind` (default: "fact"), `title`, `category`, `speaker`,
        `salience` (importance, 0..1), `occurred_at` (datetime with a time zone, or ISO 8601 text with a time zone),
        `valid_from` and `valid_to` (the period in which the text holds, without the end), `expires_at` (the time from
        which no search returns the entry; a cleaning then archives it), and `metadata` (JSON; a list under `aliases`
        contains other names of the entry). `namespace`, `session_id`, `agent_id`, `user_id` and `project` are the owner
        of the entry. `parent_id` is the id of the entry that contains the new entry; the id is not checked. If the
        parent has the same user and project, its removal also removes the entry. `pair_id` is the id of a related
        entry, such as the question that a stored answer belongs to; filters can use it as `$pair_id`.

        `source_type` and `source_id` (at most 1,000 characters) identify a record of the host application. The new
        entry replaces earlier entries of the same record. Recalled entries that `content` repeats from a prompt are
        removed from it, unless `verbatim` is True. With `searchable` False, no search returns the entry.

        If an equal fact is already stored, it is returned, and its `repeat_count` is increased, unless a newer fact has
        replaced it. Raises `InvalidInput`
        with the name of the wrong argument, and `Conflict` if a core block has the same name and another text.

        >>> entry = af.memory.store("Aino prefers tea.", user_id="aino", metadata={"about": "drinks"})
        >>> entry.kind, entry.tier
        ('fact', 'semantic')
        """
        return self.store_many([{**values, "content": content}])[0]

    def store_many(self, items: Iterable[str | Mapping[str, Any]], **common: Unpack[StoredFields]) -> list[MemoryEntry]:
        """Store entries in one transaction, and return them in the order of `items`. An item is a text, or a mapping
        with the arguments of `store`. `common` contains arguments for all items. Items with equal `source_type` and
        `source_id` belong to the same record. Together they replace the stored entries of this record.

        >>> entries = af.memory.store_many(["We chose SQLite.", "We chose FAISS."], kind="decision")
        >>> len(entries)
        2
        """
        entries = [self.hierarchical.check_tier(entry) for entry in validation.new_entries(items, common)]
        stored = _store_unique(self._backend, entries) if entries else []
        for n, (new, entry) in enumerate(zip(entries, stored, strict=True)):
            # "I live in Turku" is a new fact if "I live in Oslo" was stored since the last time.
            if entry.id != new.id and entry.kind not in RESERVED_KINDS and self._parts.recall.get().is_replaced(entry):
                stored[n] = self._backend.store([new])[0]
        return stored

    def search(
        self,
        text: str,
        *,
        limit: int = 10,
        min_score: float = 0.0,
        mode: str = "hybrid",
        relevant_only: bool = False,
        noise_floor: float | None = None,
        at: datetime | str | None = None,
        **scope: Unpack[ScopeFields],
    ) -> Hits:
        """Return at most `limit` entries that match `text`, best first, as hits with scores; see `Hit`.

        `scope` contains filters: `namespace` (default: "default"), `session_id`, `agent_id`, `user_id`, `project`,
        `tiers`, `kinds`, `categories`, `metadata` (an entry must have the same values under these keys),
        `occurred_from`, `occurred_to`, `since`, `until`, `parent_id`, `document_id`, `source_type`, `source_id`,
        `min_salience` (importance after decay), `include_archived`, `include_summarized` (also the archived originals
        of summaries), `as_of` (a time: only entries that held then; by default, only entries that hold now) and `where`
        (a tree of conditions, see docs/MEMORY.md). `since` (inclusive) and `until` (exclusive) are compared with
        `occurred_at`, or with `created_at` if an entry has no `occurred_at`. Each is a time, or a day in UTC, such as
        "2026-11-20".

        `mode` is `hybrid`, `dense` (vectors only) or `lexical` (words only). A hybrid search drops a hit that contains
        no word of `text` and has a cosine below `noise_floor` (default: `Settings.noise_floor`) on the scale of
        `embedders.calibration`, unless words or vectors are unavailable. With `relevant_only`, only hits that answer
        `text` are returned, in every mode. Salience has a small influence on the ranking. Of facts that contradict each
        other, the newest is ranked first.
        A relative date in `text`, such as "yesterday", is resolved at the moment `at` (default: now). Raises
        `InvalidInput` with the name of the wrong argument, and `NotFound` if there is no document `document_id`.

        >>> entry = af.memory.store("Aino prefers tea.", user_id="aino")
        >>> [hit.entry.content for hit in af.memory.search("What does Aino prefer?", user_id="aino")]
        ['Aino prefers tea.']
        """
        query = validation.query_from(text, scope, self._decay, limit=limit, min_score=min_score, mode=mode, at=at)
        if noise_floor is not None:
            noise_floor = fields.number("noise_floor", noise_floor)
        hits = self._parts.recall.get().search(query, relevant_only=relevant_only, noise_floor=noise_floor)
        if not hits and query.scope.document_id is not None:
            existing_document(self._backend, query.scope.document_id, query.scope.namespace)
        self._usage.count((hit.entry.id for hit in hits), matches=1)
        return hits

    def references(self, text: str, **options: Any) -> list[Reference]:
        """Search like `search`. Return the records of the host application to which hits belong, each record once."""
        return _references(self.search(text, **options))

    def get(self, entry_id: str) -> MemoryEntry:
        """Return the entry with this id, even if it is archived. Raises `NotFound` if it does not exist."""
        self._usage.flush_if_due([fields.name("entry_id", entry_id)])
        entry = existing(self._backend, entry_id)
        self._usage.count([entry_id], others=1)
        return entry

    def list(self, *, limit: int = 100, after: str | None = None, **scope: Unpack[ScopeFields]) -> Entries:
        """Return up to `limit` entries of the scope with an id greater than `after`, in the order in which they were
        stored. `scope` contains the filters of `search`. If the scope is the tier `working` of a session, the last
        messages and notes of the session are returned.

        >>> entry = af.memory.store("We chose SQLite.", kind="decision")
        >>> [entry.content for entry in af.memory.list(kinds=["decision"])]
        ['We chose SQLite.']
        """
        after = fields.text("after", after or "", fields.MAX_NAME)
        limit = fields.limit("limit", limit)
        wanted = self._scope(scope)
        if wanted.tiers == ("working",) and wanted.session_id is not None:
            return [entry for entry in self.hierarchical.working(wanted) if entry.id > after][:limit]
        self._usage.flush_if_due()
        return [*self._backend.list(wanted, after=after, limit=limit)]

    def recent(self, limit: int = 10, **scope: Unpack[ScopeFields]) -> Entries:
        """Return up to `limit` of the newest episodic entries, newest first. Entries that a summary has replaced are
        included. `scope` contains the filters of `search`."""
        return self.hierarchical.recent(self._scope(scope), fields.limit("limit", limit))

    def relevant(self, query: str, limit: int = 10, **scope: Unpack[ScopeFields]) -> Hits:
        """Search the episodic entries, including entries that a summary has replaced. See `search`."""
        fields.text("query", query)
        hits = self.hierarchical.relevant(query, self._scope(scope), fields.limit("limit", limit))
        self._usage.count((hit.entry.id for hit in hits), matches=1)
        return hits

    def history(self, entry_id: str) -> Entries:
        """Return the former versions of an entry, oldest first. Raises `NotFound` if the entry does not exist."""
        existing(self._backend, entry_id)
        return [*self._backend.history(entry_id)]

    def transcript(self, session_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Entries:
        """Return all messages of a session, including archived messages, with their original text, oldest first."""
        session_id, namespace = fields.name("session_id", session_id), fields.name("namespace", namespace)
        return self.hierarchical.transcript(session_id, namespace=namespace)

    def build_context(
        self,
        task: str,
        conversation: Any = (),
        max_tokens: int | None = None,
        *,
        where: Where | None = None,
        as_of: datetime | str | None = None,
        **place: Unpack[Place],
    ) -> Context:
        """Return a context: chat messages for a language model, with a report; see `ContextBuilder.build`. The messages
        have at most `max_tokens` tokens (default: `Settings.context_tokens`). `place` selects the entries: `namespace`,
        `session_id`, `agent_id`, `user_id` and `project`. `where` is a filter of the recalled entries. `as_of` is
        a time: the context then has the entries that held at this time. The entries in the messages are counted as
        read.

        >>> message = af.memory.add_message("monday", "user", "I moved to Turku.")
        >>> context = af.memory.build_context("Where do I live?", session_id="monday")
        >>> [each.content for each in context.messages]
        ['I moved to Turku.', 'Where do I live?']
        """
        context = self._parts.contexts.get().build(task, conversation, max_tokens, where=where, as_of=as_of, **place)
        self._usage.count((entry_id for ids in context.report.included.values() for entry_id in ids), reads=1)
        return context

    def update(self, entry_id: str, *, expected_version: int | None = None, **changes: Any) -> MemoryEntry:
        """Change fields of an entry, and add its former version to its history. Return the changed entry. Raises
        `NotFound` if the entry does not exist, `InvalidInput` if the entry or a field cannot be changed, and `Conflict`
        if the stored entry has another version than `expected_version`.

        >>> entry = af.memory.store("Aino prefers tea.")
        >>> af.memory.update(entry.id, content="Aino prefers green tea.", expected_version=entry.version).version
        2
        """
        former = changeable(self._backend, entry_id)
        checked = validation.changes(former, changes)
        self.hierarchical.check_update(former, checked)
        return self._backend.update(entry_id, checked, expected_version)

    def supersede(self, old_id: str, new_id: str) -> MemoryEntry:
        """Mark the entry `old_id` as superseded (replaced) by the entry `new_id`, so that searches no longer return it.
        Return the old entry. Its validity ends when the new entry begins to hold: at its `valid_from`, or else at the
        earlier of `occurred_at` and `created_at`. If this time is in the future, the old entry is found until then. If
        the new entry is removed, or archived without a summary, searches find the old entry again. Raises `NotFound` if
        one of them does not exist, `InvalidInput` if the new entry cannot supersede the old one, and `Conflict` if one
        of them is already superseded, or if the new entry is archived.

        >>> old, new = af.memory.store("Price: 5 euros"), af.memory.store("Price: 6 euros")
        >>> af.memory.supersede(old.id, new.id).superseded_by == new.id
        True
        """
        old, new = changeable(self._backend, old_id), changeable(self._backend, new_id)
        _check_supersession(old, new)
        return self._backend.update(old_id, {"superseded_by": new_id}, old.version)

    def remove(self, what: str | Scope, *, expected_version: int | None = None) -> int:
        """Delete an entry, or all entries in a scope, with their parts, vectors, index terms, history and uploaded
        files. Return the number of deleted entries.

        If a part of a document is in the scope, the complete document is deleted. If an original of a summary is
        deleted, the summary is deleted too, and searches find its other originals again. Searches also find the entries
        that were superseded by a deleted entry. A part in another namespace, or of another user or project, is not
        deleted.

        If `what` is an id, raises `NotFound` if the entry does not exist, `Conflict` if it has another version than
        `expected_version`, and `InvalidInput` if it is a document or part of one; use `rag.remove` for these.

        >>> entry = af.memory.store("Aino prefers tea.", user_id="aino")
        >>> af.memory.remove(agentformer.Scope(user_id="aino"))
        1
        """
        if isinstance(what, Scope):
            return _remove_scope(self._backend, validation.checked(what), self._delete_originals)
        entry = changeable(self._backend, what)
        others = repeats(self._backend, [entry])
        if deleted := self._backend.remove([entry.id], expected_version):
            return deleted + (self._backend.remove(others) if others else 0)
        raise NotFound(f"there is no entry {what}")

    def mark_read(self, ids: Sequence[str]) -> None:
        """Count that a person or a model has read these entries. Raises `NotFound` if one of them does not exist."""
        for entry_id in fields.names("ids", ids):
            existing(self._backend, entry_id)
        self._usage.count(ids, reads=1)
        self._usage.flush()

    def clean(self, **scope: Unpack[CleaningScope]) -> CleaningReport:
        """Replace old episodic entries by summaries, and return a report. `namespace`, `session_id`, `user_id` and
        `project` limit the cleaning; without them, all sessions are cleaned.

        >>> af.memory.clean(session_id="monday").summaries  # nothing to summarize yet
        ()
        """
        return self._cleaner.run(**{name: fields.optional_name(name, value) for name, value in scope.items()})

    def restore(self, summary_id: str) -> Entries:
        """Undo a summary: archive it, and make the entries that it replaced live again. Return these entries. Instead
        of a summary, `summary_id` may be an entry that was superseded, or archived without a summary, or that has
        expired; this entry becomes live again, without its `expires_at` if it has expired. Raises `NotFound` if the
        entry does not exist, `InvalidInput` if nothing can be restored or if a summary has archived the entry, and
        `Conflict` if the summary was already restored."""
        return _restored(self._backend, existing(self._backend, summary_id))

    def learn(
        self,
        session_id: str | None = None,
        *,
        messages: Sequence[str] = (),
        namespace: str = DEFAULT_NAMESPACE,
        user_id: str | None = None,
        project: str | None = None,
        dry_run: bool = False,
    ) -> LearningReport:
        """Store the facts that users have stated in messages, each as an entry of the kind `fact` with the words that
        prove it, and return a report. Facts are learnt from the messages that no run has read yet: of one session, or
        of all sessions. `messages` are ids of messages to read, also if they were read before. `user_id` and `project`
        limit the messages. A dry run stores nothing.

        A language model, if one is configured, proposes the facts; those that the message does not prove are dropped
        and counted. Without a model, facts are learnt by the form of sentences. The removal of a message removes what
        was learnt from it, and `undo_learning` undoes a run. Raises `NotFound` and `InvalidInput` for a wrong id, and
        `LanguageModelUnavailable` if the model cannot be reached.

        >>> message = af.memory.add_message("monday", "user", "Hi! I live in Turku.", user_id="aino")
        >>> [fact.text for fact in af.memory.learn("monday").facts]
        ['I live in Turku']
        """
        scope = Scope(
            fields.name("namespace", namespace),
            session_id=fields.optional_name("session_id", session_id),
            user_id=fields.optional_name("user_id", user_id),
            project=fields.optional_name("project", project),
        )
        ids = fields.names("messages", messages)
        return self._parts.learner.get().learn(scope, ids, dry_run=fields.flag("dry_run", dry_run))

    def learning_runs(self, *, namespace: str = DEFAULT_NAMESPACE) -> Sequence[LearningRun]:
        """Return the runs of `learn` in a namespace, newest first."""
        return self._parts.learner.get().journal.runs(fields.name("namespace", namespace))

    def undo_learning(self, run: str) -> UndoneLearning:
        """Undo a run of `learn`: archive the facts that it has stored, so that searches find the facts again that they
        have replaced. Facts that a caller has changed stay. Raises `NotFound` if there is no such run, and `Conflict`
        if it was undone before."""
        return self._parts.learner.get().journal.undo(fields.name("run", run))

    def profile(
        self,
        user_id: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        agent_id: str | None = None,
        project: str | None = None,
        max_tokens: int = 1_000,
    ) -> Profile:
        """Return what holds now about a user: core blocks, standing instructions and facts in groups, each with its
        source and its time, in at most `max_tokens` tokens. Facts that a newer one replaces are left out. Raises
        `InvalidInput` for an invalid argument.

        >>> entry = af.memory.store("I live in Turku.", user_id="aino")
        >>> "Turku" in af.memory.profile("aino").text
        True
        """
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise InvalidInput("max_tokens", f"must be a whole number above 0, got {fields.shown(max_tokens)}")
        scope = Scope(
            fields.name("namespace", namespace),
            tiers=("semantic",),
            user_id=fields.name("user_id", user_id),
            agent_id=fields.optional_name("agent_id", agent_id),
            project=fields.optional_name("project", project),
        )
        blocks = self.core.blocks(namespace, agent_id=scope.agent_id, user_id=scope.user_id)
        return self._parts.learner.get().profile(blocks, scope=scope, max_tokens=max_tokens)

    def audit(
        self, *, namespace: str = DEFAULT_NAMESPACE, user_id: str | None = None, project: str | None = None
    ) -> AuditReport:
        """Return a report about duplicates, entries that are never read, contradictions between facts and between core
        blocks, and core blocks that are too large. The audit uses no language model and changes nothing."""
        self._usage.flush()
        user_id, project = fields.optional_name("user_id", user_id), fields.optional_name("project", project)
        namespace = fields.name("namespace", namespace)
        return self._parts.auditor.get().run(namespace=namespace, user_id=user_id, project=project)

    def effective_salience(self, entry: MemoryEntry) -> float:
        """Return the salience (importance) of an entry after decay until now, 0..1."""
        return effective_salience(entry, self._decay)

    def reindex(self) -> int:
        """Embed the entries that have no vectors yet, and update the search index. Return the number of entries that
        still have no vectors."""
        return vectors_of(self._backend).embed_pending()

    def status(self) -> dict[str, Any]:
        """Return the counts of the backend, the state of the cleaner and, if facts are learnt when messages are added,
        the state of the learner, as JSON values."""
        self._usage.flush()
        learner = {"learner": self._parts.learner.get().status()} if self._parts.learns else {}
        return {**status_of(self._backend), "cleaner": self._cleaner.status(), **learner}

    def close(self) -> None:
        """Write the counts of uses that are still only in memory. The backend is not closed."""
        self._usage.flush()

    def _scope(self, values: Mapping[str, Any]) -> Scope:
        return validation.scope_from(values, self._decay)


def _store_unique(backend: MemoryBackend, entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    try:
        return list(backend.store(entries, replacing=validation.replaced(entries), unique=True))
    except Conflict as error:
        if blocks := [entry.title for entry in entries if entry.tier == "core" and entry.title]:
            raise Conflict(
                f"one of the core blocks {blocks} already exists; edit this block with `core append` or `core replace`"
            ) from None
        raise error from None


def _references(hits: Iterable[Hit]) -> list[Reference]:
    references: dict[tuple[str, str], Reference] = {}
    for hit in hits:
        entry = hit.entry
        if entry.source_type is not None and entry.source_id is not None:
            record = (entry.source_type, entry.source_id)
            references.setdefault(record, Reference(*record, entry.id, hit.score, entry.pair_id, entry.parent_id))
    return [*references.values()]


def _remove_scope(backend: MemoryBackend, scope: Scope, delete_originals: Callable[[], None]) -> int:
    """Remove all entries in the scope, and all documents that have a part in the scope. Then call `delete_originals`.
    Return the number of removed entries."""
    scope = dataclasses.replace(scope, include_archived=True)
    whole, parts = set[str](), set[str]()  # ids of the documents in the scope, and of those with a part in it
    for entry in all_entries(backend, scope):
        if entry.source:
            parts.add(entry.source.document_id)
        elif entry.kind == "document":
            whole.add(entry.id)
    cut, deleted = sorted(parts - whole), 0
    for start in range(0, len(cut), _IN_FILTER):  # as a scope, so that no index file keeps their text
        where = Condition("in", "$id", tuple(cut[start : start + _IN_FILTER]))
        deleted += backend.remove(Scope(scope.namespace, where=where))
    deleted += backend.remove(scope)  # with the parts of the documents in it, in one transaction
    delete_originals()
    return deleted


def _restored(backend: MemoryBackend, entry: MemoryEntry) -> list[MemoryEntry]:
    """Make an entry or the originals of a summary live again, and return them; see `MemoryManager.restore`."""
    if entry.source_type == fields.LEARNING:
        raise InvalidInput("summary_id", f"{entry.id} is a learning run; undo it with `learn --undo`, or undo_learning")
    expired = is_expired(entry) and entry.archived_by is None
    changes: dict[str, Any] = {"expires_at": None} if expired else {}
    if entry.superseded_by is not None:
        changes["superseded_by"] = None
    if entry.archived_at is not None and (expired or (entry.kind != "summary" and not changes)):
        changes["archived_at"] = None
    return [backend.update(entry.id, changes, entry.version)] if changes else [*backend.restore(entry.id)]


def _check_supersession(old: MemoryEntry, new: MemoryEntry) -> None:
    if old.id == new.id or (old.namespace, old.user_id) != (new.namespace, new.user_id):
        raise InvalidInput("new_id", "must be another entry of the same namespace and the same user")
    if fields.RESERVED_SOURCE_TYPES & {old.source_type, new.source_type}:
        problem = "must not be a record of AgentFormer, such as a vector store; the same is true for new_id"
        raise InvalidInput("old_id", problem)
    if "core" in (old.tier, new.tier):
        raise InvalidInput("old_id", "core blocks cannot be superseded; edit them with `core append` or `core replace`")
    if old.derived_from and old.kind == "summary" and old.archived_at is None:
        raise InvalidInput(
            "old_id",
            f"the summary {old.id} cannot be superseded; update its text, or restore its original entries first",
        )
