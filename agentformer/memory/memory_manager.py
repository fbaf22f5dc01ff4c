"""`MemoryManager`: the coordinator. What callers say is checked, routed, kept, counted, and found again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.memory import validation as arguments
from agentformer.memory.core import BLOCK_KIND, CoreMemory, block_id
from agentformer.memory.hierarchical import HierarchicalMemory
from agentformer.memory.memory_cleaner import CleaningReport, MemoryCleaner
from agentformer.memory.types import MessageFields, Place, ScopeFields, StoredFields
from agentformer.memory.usage import UsageCounter
from agentformer.records import fields
from agentformer.records.salience import effective_salience
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
    from agentformer.memory.audit.audit import AuditReport
    from agentformer.memory.context.builder import Context, ContextBuilder
    from agentformer.memory.recall import Recall

Entries = list[MemoryEntry]  # inside the class, `list` is a method

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class PartBuilders:
    """Functions that build the parts of a `MemoryManager` for one call, so that other calls do not import them."""

    context_builder: Callable[[], ContextBuilder]
    recall: Callable[[], Recall]
    audit: Callable[..., AuditReport]


class MemoryManager:
    """Remembers and recalls. Thread-safe as its backend is. Every call stays inside one namespace.

    `place` below means the keyword arguments `namespace` ("default"), `session_id`, `agent_id`, `user_id` and
    `project`; those not given are not asked for. `decay` gives the categories' daily rates. `released` is told
    the digests of uploaded files whose documents went with a scope.
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
        context_tokens: int,
        count_tokens: Callable[[str], int],
        released: Callable[[Iterable[str]], None],
    ) -> None:
        self._backend = backend
        self._cleaner = cleaner
        self._parts = parts
        self._decay_rates = dict(decay_rates)
        self._context_tokens = context_tokens
        self._count_tokens = count_tokens
        self._released = released
        self._usage = usage
        self.hierarchical = hierarchical

    @property
    def core(self) -> CoreMemory:
        """The named blocks that are always in context."""
        return self.hierarchical.core

    # ------------------------------------------------------------------ remembering

    def add_message(self, session_id: str, role: str, content: str, **values: Unpack[MessageFields]) -> MemoryEntry:
        """Keep what was said in a session: `role` is user, assistant, system or tool.

        `values` are `speaker`, `occurred_at` (aware datetime or ISO 8601 with a zone; now), `metadata`, `place`
        and the references of `store`. Messages are kept each time, also when they repeat. Every few messages
        the session's old ones become a summary (`Settings.clean_every`). Raises `InvalidInput`.
        """
        return self.add_messages([{**values, "session_id": session_id, "role": role, "content": content}])[0]

    def add_messages(self, messages: Iterable[Mapping[str, Any]]) -> Entries:
        """Keep many messages, of one session or several, such as a chat that another program has kept: mappings of
        `add_message`'s arguments, each session's in order. All or none, in one transaction, embedded together. Raises
        `InvalidInput`."""
        entries = [arguments.new_message(message) for message in arguments.mappings("messages", messages)]
        stored = [*self._backend.store(entries, replacing=arguments.replaced(entries))] if entries else []
        for entry in stored:
            self._cleaner.message_added(entry)
        return stored

    def store(self, content: str, **values: Unpack[StoredFields]) -> MemoryEntry:
        """Remember `content`; it is on disk when this returns, and found by every search from then on.

        `values`: `tier` ("semantic"), `kind` ("fact"), `place`, `title`, `metadata` (JSON; a list under `aliases`
        holds other names to find it by), `category`, `occurred_at` (aware datetime or ISO 8601 with a zone),
        `salience` (0..1), `speaker`, `parent_id`, `pair_id`, and `source_type` with `source_id`: a record of the
        host application, whose former entries it replaces.

        The same fact again is not kept twice: the entry that is there comes back, its `repeat_count` one higher.
        Raises `InvalidInput` naming the field, and `Conflict` for a core block that exists with another text.
        """
        return self.store_many([{**values, "content": content}])[0]

    def store_many(self, items: Iterable[str | Mapping[str, Any]], **common: Unpack[StoredFields]) -> list[MemoryEntry]:
        """Remember many at once: all or none, in one transaction, embedded together.

        An item is a content or a mapping of `store`'s arguments; `common` gives arguments for all of them.
        Items of one `source_id` replace its former entries together. Returns the entries in the order of `items`.
        """
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            raise InvalidInput("items", f"must be a list of contents or mappings, got {type(items).__name__}")
        entries = [
            self._checked(arguments.new_entry({**common, **(item if isinstance(item, Mapping) else {"content": item})}))
            for item in items
        ]
        if not entries:
            return []
        try:
            return list(self._backend.store(entries, replacing=arguments.replaced(entries), unique=True))
        except Conflict:
            blocks = [entry.title for entry in entries if entry.tier == "core" and entry.title]
            if not blocks:
                raise
            raise Conflict(
                f"one of the core blocks {blocks} exists; edit it with core.append or core.replace"
            ) from None

    def _checked(self, entry: MemoryEntry) -> MemoryEntry:
        """The tiers' own rules."""
        if entry.tier == "working" and entry.session_id is None:
            raise InvalidInput("session_id", "is missing; working memory belongs to a session")
        if entry.tier != "core":
            return entry
        self.core.check(entry.title or "(untitled)", entry.content)
        if not entry.title:
            return entry
        own = block_id(entry.title, entry.namespace, entry.agent_id, entry.user_id)
        return dataclasses.replace(entry, id=own, kind=BLOCK_KIND if entry.kind == "fact" else entry.kind)

    # ------------------------------------------------------------------ recalling

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
        """The best `limit` entries of the scope, best first; see `Hit` for what each carries.

        `scope`: `place`, `tiers`, `kinds`, `categories`, `metadata` (equality of keys), `occurred_from`,
        `occurred_to`, `parent_id`, `source_type`, `source_id`, `min_salience` (after decay) and `include_archived`.
        `mode` is `hybrid`, `dense` or `lexical`. In the mode `hybrid` what shares no term with `text` and lies far
        from it (`Settings.noise_floor`) does not fill the list; `relevant_only` leaves out all that does not bear
        on it. Salience weighs gently, and of facts that contradict each other the latest comes first. "Yesterday" in
        `text` is reckoned from `at` (aware, or ISO 8601 with a zone; now). Raises `InvalidInput` naming the field.
        """
        fields.text("text", text)
        if not isinstance(min_score, (int, float)) or min_score != min_score:  # NaN is unlike itself
            raise InvalidInput("min_score", f"must be a number, got {min_score!r}")
        if mode not in ("hybrid", "dense", "lexical"):
            raise InvalidInput("mode", f"must be hybrid, dense or lexical, got {mode!r}")
        wanted = fields.limit("limit", limit)
        within = self._scope(scope)
        query = Query(text, within, wanted, mode=mode, at=fields.moment_in_zone("at", at))  # type: ignore[arg-type]
        hits = self._parts.recall().search(query, min_score=min_score, relevant_only=relevant_only)
        self._usage.count_matches(hit.entry.id for hit in hits)
        return hits

    def references(self, text: str, **options: Any) -> list[Reference]:
        """As `search`, but what comes back is the host application's own records, each once, best first."""
        found: dict[tuple[str, str], Reference] = {}
        for hit in self.search(text, **options):
            entry = hit.entry
            if entry.source_type is not None and entry.source_id is not None:
                reference = Reference(
                    entry.source_type, entry.source_id, entry.id, hit.score, entry.pair_id, entry.parent_id
                )
                found.setdefault((entry.source_type, entry.source_id), reference)
        return list(found.values())

    def get(self, entry_id: str) -> MemoryEntry:
        """The entry of this id, archived or not. Raises `NotFound`."""
        self._usage.flush_if_due([fields.name("entry_id", entry_id)])
        found = self._known(entry_id)
        self._usage.count_gets([entry_id])
        return found

    def list(self, *, limit: int = 100, after: str | None = None, **scope: Unpack[ScopeFields]) -> Entries:
        """Entries of the scope (as for `search`) in order of id, which is the order of storing; `after` is the
        last id of the page before. For the tier `working` of a session: its last messages and notes."""
        after = fields.text("after", after or "", fields.MAX_NAME)
        wanted = fields.limit("limit", limit)
        within = self._scope(scope)
        if within.tiers == ("working",) and within.session_id is not None:
            at_hand = self.hierarchical.working(within)
            return [entry for entry in sorted(at_hand, key=lambda entry: entry.id) if entry.id > after][:wanted]
        self._usage.flush_if_due()
        return [*self._backend.list(within, after=after, limit=wanted)]

    def recent(self, limit: int = 10, **scope: Unpack[ScopeFields]) -> Entries:
        """The newest episodic entries, newest first, also those that a summary stands for."""
        return self.hierarchical.recent(self._scope(scope), fields.limit("limit", limit))

    def relevant(self, query: str, limit: int = 10, **scope: Unpack[ScopeFields]) -> Hits:
        """The episodic entries that bear most on `query`, of all that ever happened."""
        fields.text("query", query)
        hits = self.hierarchical.relevant(query, self._scope(scope), fields.limit("limit", limit))
        self._usage.count_matches(hit.entry.id for hit in hits)
        return hits

    def history(self, entry_id: str) -> Entries:
        """Former versions, oldest first. Raises `NotFound` for an entry that is not there."""
        self._known(entry_id)
        return [*self._backend.history(entry_id)]

    def transcript(self, session_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Entries:
        """A session's messages exactly as they were said, in order, summarised or not."""
        return self.hierarchical.transcript(
            fields.name("session_id", session_id), namespace=fields.name("namespace", namespace)
        )

    def build_context(
        self, task: str, conversation: Any = (), max_tokens: int | None = None, **place: Unpack[Place]
    ) -> Context:
        """Chat messages for a model, within `max_tokens` (`Settings.context_tokens`), and a report of what is in
        them and what was left out. See `ContextBuilder.build`; what is included counts as read."""
        budget = self._context_tokens if max_tokens is None else max_tokens
        context = self._parts.context_builder().build(task, conversation, budget, **arguments.place_from(place))
        self._usage.count_reads(entry_id for ids in context.report.included.values() for entry_id in ids)
        return context

    # ------------------------------------------------------------------ changing

    def update(self, entry_id: str, *, expected_version: int | None = None, **changes: Any) -> MemoryEntry:
        """Change fields of an entry; the former state stays in its history.

        Raises `NotFound`, `InvalidInput`, and `Conflict` when `expected_version` is not the one that is stored.
        """
        former = self._own(entry_id)
        changed = arguments.changes(former, changes)
        if former.tier == "core":
            if changed.get("title", former.title) != former.title:
                raise InvalidInput("title", "of a core block is its name and stays; make another block")
            self.core.check(former.title or former.id, changed.get("content", former.content))
        return self._backend.update(entry_id, changed, expected_version)

    def supersede(self, old_id: str, new_id: str) -> MemoryEntry:
        """Let a newer entry take the place of an older one, which leaves the results and stays reachable by its
        id. Returns the older one. Raises `NotFound`, `InvalidInput`, `Conflict` when one is superseded already."""
        old, new = self._own(old_id), self._own(new_id)
        if old_id == new_id or (old.namespace, old.user_id) != (new.namespace, new.user_id):
            raise InvalidInput("new_id", "must be another entry of the same namespace and the same user")
        if "core" in (old.tier, new.tier):
            raise InvalidInput("old_id", "core blocks are not superseded; edit them with core.append or core.replace")
        if old.derived_from and old.kind == "summary" and old.archived_at is None:
            raise InvalidInput("old_id", f"{old_id} stands for other entries; update its text, or restore it first")
        for entry in (old, new):
            if entry.superseded_by is not None:
                raise Conflict(f"{entry.id} is superseded by {entry.superseded_by} already")
        return self._backend.update(old_id, {"superseded_by": new_id}, old.version)

    def remove(self, what: str | Scope, *, expected_version: int | None = None) -> int:
        """Forget an entry, or everything in a scope: entries, their parts, vectors, terms, history, and uploaded
        files. Returns how many entries went.

        A summary of which an original goes is taken apart: it goes too, and its other originals come back.
        Raises `NotFound` for an id, `Conflict` when it is not at `expected_version`, and `InvalidInput` for an uploaded
        document's: that is `rag.remove`.
        """
        if isinstance(what, Scope):
            return self._remove_scope(dataclasses.replace(arguments.checked(what), include_archived=True))
        self._own(what)
        gone = self._backend.remove([what], expected_version)
        if not gone:
            raise NotFound(f"there is no entry {what}")
        return gone

    def mark_read(self, ids: Sequence[str]) -> None:
        """Say that these entries were read or given to a model. Raises `NotFound`."""
        for entry_id in fields.names("ids", ids):
            self._known(entry_id)
        self._usage.count_reads(ids)
        self._usage.flush()

    # ------------------------------------------------------------------ keeping house

    def clean(self, *, namespace: str | None = None, session_id: str | None = None) -> CleaningReport:
        """Turn old episodic entries into summaries, of one session, one namespace, or everywhere."""
        return self._cleaner.run(
            namespace=fields.optional_name("namespace", namespace),
            session_id=fields.optional_name("session_id", session_id),
        )

    def restore(self, summary_id: str) -> Entries:
        """Bring a summary's originals back, exactly as they were; the summary leaves the results. Given a
        superseded entry, bring that one back. Raises `NotFound`, `InvalidInput` for an entry that stands for no
        others, `Conflict` when it was done already."""
        entry = self._known(summary_id)
        if entry.superseded_by is not None:
            return [self._backend.update(summary_id, {"superseded_by": None}, entry.version)]
        return self._cleaner.restore(summary_id)

    def audit(
        self, *, namespace: str = DEFAULT_NAMESPACE, user_id: str | None = None, project: str | None = None
    ) -> AuditReport:
        """Duplicates, entries that nobody reads, blocks that contradict each other or grew too large; with a user or
        a project, among theirs alone. Needs no language model and changes nothing."""
        self._usage.flush()
        return self._parts.audit(
            self._backend,
            namespace=fields.name("namespace", namespace),
            user_id=fields.optional_name("user_id", user_id),
            project=fields.optional_name("project", project),
            count_tokens=self._count_tokens,
            block_tokens=self.core.block_tokens,
        )

    def effective_salience(self, entry: MemoryEntry) -> float:
        """What decay leaves of an entry's salience today, 0..1."""
        return effective_salience(entry, Decay(self._decay_rates))

    def reindex(self) -> int:
        """Embed what could not be embedded when it was stored. Returns how many entries still wait."""
        return self._backend.embed_pending()

    def status(self) -> dict[str, Any]:
        """Counts and state of the parts, as JSON values."""
        self._usage.flush()
        return {**self._backend.status(), "cleaner": self._cleaner.status()}

    def close(self) -> None:
        """Write the counts that are still gathered. The backend is closed by who opened it."""
        self._usage.flush()

    # ------------------------------------------------------------------ within

    def _scope(self, values: Mapping[str, Any]) -> Scope:
        return arguments.scope_from(values, Decay(self._decay_rates))

    def _known(self, entry_id: str) -> MemoryEntry:
        found = self._backend.get([fields.name("entry_id", entry_id)])
        if not found:
            raise NotFound(f"there is no entry {entry_id}")
        return found[0]

    def _own(self, entry_id: str) -> MemoryEntry:
        """An entry that is no part of what `rag` keeps: citations are only exact while nobody rewrites that."""
        entry = self._known(entry_id)
        if entry.kind in UNSEARCHED_KINDS or entry.source is not None:
            raise InvalidInput(
                "entry_id", f"{entry_id} is of an uploaded document; replace that with rag.upload, or use rag.remove"
            )
        return entry

    def _remove_scope(self, scope: Scope) -> int:
        """Documents of which a part lies in the scope go as a whole, with their files."""
        documents = {entry.source.document_id if entry.source else entry.id for entry in self._documented(scope)}
        digests = [str(entry.metadata["sha256"]) for entry in self._backend.get(sorted(documents))]
        gone = self._backend.remove(sorted(documents)) if documents else 0
        gone += self._backend.remove(scope)
        self._released(digests)
        return gone

    def _documented(self, scope: Scope) -> Iterator[MemoryEntry]:
        """The documents of a scope, and parts of documents."""
        after = ""
        while page := self._backend.list(scope, after=after, limit=_PAGE):
            yield from (entry for entry in page if entry.kind == "document" or entry.source is not None)
            after = page[-1].id
