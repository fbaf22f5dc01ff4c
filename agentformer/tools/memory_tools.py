"""`MemoryTools`: tools with which a language model stores and searches memories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from agentformer.access.permissions import PERMISSIONS
from agentformer.errors import InvalidInput, NotFound
from agentformer.memory.memory_manager import MemoryManager
from agentformer.records.fields import MAX_CONTENT, MAX_NAME, program_metadata
from agentformer.records.offers import vectors_of
from agentformer.tools.caller import Caller
from agentformer.tools.definition import Hints, tool
from agentformer.tools.result_json import (
    brief_hit_json,
    brief_json,
    cut_json,
    factors_json,
    metadata_json,
    report_json,
    steps_json,
)
from agentformer.types import TIERS, MemoryBackend, MemoryEntry, Scope, Tier

_PART = 8_000  # characters of a text that one call returns
_MESSAGE = "message"

Namespace = Annotated[str | None, Field(description="A namespace other than the default. Omit unless told.")]
Id = Annotated[str, Field(min_length=1, max_length=MAX_NAME, description="The id of a memory, from a search result.")]
Limit = Annotated[int, Field(ge=1, le=50, description="The maximum number of results.")]
Query = Annotated[str, Field(min_length=1, max_length=8_000, description="The words or the question to search for.")]
Explain = Annotated[bool, Field(description="Also explain the rank of each result. Omit unless asked.")]
Salience = Annotated[float, Field(ge=0, le=1, description="The importance, 0 to 1.")]
Metadata = Annotated[dict[str, Any] | None, Field(description="Values to store with the text, as a JSON object.")]
Block = Annotated[str, Field(min_length=1, max_length=MAX_NAME, description="The block's name, such as persona.")]
Since = Annotated[str | None, Field(description="Only entries of this day or later, such as 2026-11-20 (UTC).")]
AsOf = Annotated[str | None, Field(description="What held at this time (ISO 8601 with a time zone). Default: now.")]
ValidFrom = Annotated[str | None, Field(description="From this time on it holds (ISO 8601 with a time zone).")]
ValidTo = Annotated[str | None, Field(description="From this time on it no longer holds.")]
Expires = Annotated[str | None, Field(description="From this time on no search returns it.")]
Until = Annotated[str | None, Field(description="Only entries of this day or earlier.")]
Where = Annotated[
    dict[str, Any] | None,
    Field(
        description='Only what matches: {"type": "gte", "key": "year", "value": 2026}; types eq, ne, gt, gte, lt, lte, '
        'in, nin, exists, or and, or, not with "filters": [...]; key is a metadata key, or a field such as "$kind".'
    ),
]
Content = Annotated[str, Field(min_length=1, max_length=MAX_CONTENT)]


class MemoryTools:
    """The tools for a memory. `status` is a function that returns the state of the whole memory. Only callers with the
    right `admin` get this state."""

    def __init__(self, memory: MemoryManager, backend: MemoryBackend, status: Callable[[], Mapping[str, Any]]) -> None:
        self._memory = memory
        self._backend = backend
        self._status = status

    @tool("Remember", Hints(PERMISSIONS["memory_add"], additive=True))
    def memory_add(
        self,
        caller: Caller,
        content: Annotated[Content, Field(description="What to remember: one fact, understandable by itself.")],
        kind: Annotated[str, Field(description="fact, preference, decision, error, milestone, ...")] = "fact",
        title: Annotated[str, Field(description="A short name.")] = "",
        category: Annotated[
            str, Field(description="Sets how fast the memory fades: `decisions`, `summaries` or `context`.")
        ] = "",
        salience: Salience = 1.0,
        occurred_at: Annotated[
            str | None, Field(description="The time of the event: ISO 8601 with a time zone.")
        ] = None,
        valid_from: ValidFrom = None,
        valid_to: ValidTo = None,
        expires_at: Expires = None,
        metadata: Metadata = None,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Remember a fact, a preference or a decision for later conversations. The same fact is stored only once."""
        entry = self._memory.store(
            content,
            kind=kind,
            title=title,
            category=category,
            salience=salience,
            occurred_at=occurred_at,
            valid_from=valid_from,
            valid_to=valid_to,
            expires_at=expires_at,
            metadata=program_metadata(metadata, {**caller.stored_metadata, **caller.grant.stored_metadata}),
            namespace=caller.namespace_for(namespace),
            user_id=caller.user_id,
            agent_id=caller.agent_id,
            project=caller.project,
        )
        if not caller.grant.may("read"):  # this caller must not learn whether the fact is stored already
            return {"memory": {"namespace": entry.namespace}}
        return {"memory": cut_json(entry, _PART), "known_already": bool(entry.repeat_count)}

    @tool("Search memories", Hints(PERMISSIONS["memory_search"], idempotent=True))
    def memory_search(
        self,
        caller: Caller,
        query: Query,
        limit: Limit = 5,
        kinds: Annotated[list[str] | None, Field(description="Only these kinds, such as fact or summary.")] = None,
        tiers: Annotated[list[Tier] | None, Field(description=f"Only these tiers ({', '.join(TIERS)}).")] = None,
        since: Since = None,
        until: Until = None,
        as_of: AsOf = None,
        where: Where = None,
        relevant_only: Annotated[bool, Field(description="Return only relevant results.")] = False,
        include_archived: Annotated[bool, Field(description="Also return messages that were summarized.")] = False,
        explain: Explain = False,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Search memories and documents, best results first. Search before you say that you do not know."""
        scope = caller.search_scope(namespace)
        hits = self._memory.search(
            query,
            limit=limit,
            kinds=kinds or (),
            tiers=tiers or (),
            since=since,
            until=until,
            as_of=as_of,
            where=caller.filter(where, scope["namespace"]),
            relevant_only=relevant_only,
            include_archived=include_archived,
            **scope,
        )
        memories = [brief_hit_json(hit, _PART, explain=explain) for hit in hits]
        explained = {"factors": factors_json(hits), "steps": steps_json(hits)} if explain else {}
        return {"memories": memories, "warnings": list(hits.warnings), **explained}

    @tool("Read a memory", Hints(PERMISSIONS["memory_get"], idempotent=True))
    def memory_get(
        self,
        caller: Caller,
        id: Id,
        start: Annotated[int, Field(ge=0, description="The position from which to read.")] = 0,
    ) -> dict[str, Any]:
        """Read one memory by its id. To continue a long memory, pass `next_start` as `start`."""
        entry = self._memory.get(self._visible(caller, id).id)
        end = start + _PART
        more = {"next_start": end} if end < len(entry.content) else {}
        return {"memory": {**brief_json(entry, entry.content[start:end]), **metadata_json(entry.metadata)}, **more}

    @tool("Change a memory", Hints(PERMISSIONS["memory_update"]))
    def memory_update(
        self,
        caller: Caller,
        id: Id,
        content: Annotated[Content | None, Field(description="The new text.")] = None,
        title: Annotated[str | None, Field(description="A short name.")] = None,
        kind: Annotated[str | None, Field(description="fact, preference, decision, error, milestone, ...")] = None,
        category: Annotated[
            str | None, Field(description="Sets how fast the memory fades: `decisions`, `summaries` or `context`.")
        ] = None,
        salience: Annotated[Salience | None, Field(description="The importance, 0 to 1.")] = None,
        valid_from: ValidFrom = None,
        valid_to: ValidTo = None,
        expires_at: Expires = None,
        metadata: Metadata = None,
        expected_version: Annotated[
            int | None, Field(ge=1, description="Make the change only if the memory still has this version.")
        ] = None,
    ) -> dict[str, Any]:
        """Change a memory. Its former text is kept in its history. Give only the fields to change."""
        former = caller.require_changeable(self._visible(caller, id))
        if former.tier == "core":
            PERMISSIONS["memory_update a core block"].require(caller.grant)
        if former.kind == _MESSAGE and (content, kind) != (None, None):
            raise InvalidInput("id", "is the id of a message, and messages cannot be changed; add a memory instead")
        values: dict[str, Any] = {"content": content, "title": title, "kind": kind, "category": category}
        values |= {"salience": salience, "metadata": metadata, "valid_from": valid_from, "valid_to": valid_to}
        values |= {"expires_at": expires_at}
        changes = {name: value for name, value in values.items() if value is not None}
        entry = self._memory.update(id, expected_version=expected_version, **changes)
        return {"memory": cut_json(entry, _PART)}

    @tool("Forget a memory", Hints(PERMISSIONS["memory_delete"], idempotent=True))
    def memory_delete(self, caller: Caller, id: Id) -> dict[str, Any]:
        """Delete a memory permanently, with its history and the summaries made from it. Use this only if the user
        asks."""
        return {"forgotten": self._memory.remove(caller.require_changeable(self._visible(caller, id)).id)}

    @tool(
        "Add to a core block",
        Hints(PERMISSIONS["core_memory_append"], idempotent=True, additive=True, changes_prompt=True),
    )
    def core_memory_append(
        self,
        caller: Caller,
        name: Block,
        text: Annotated[Content, Field(description="The line to add.")],
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Add a short line to a core block. Core blocks are always in your context."""
        block = self._memory.core.append(name, text, **self._owner(caller, namespace))
        return {"block": cut_json(block, _PART)}

    @tool("Correct a core block", Hints(PERMISSIONS["core_memory_replace"], changes_prompt=True))
    def core_memory_replace(
        self,
        caller: Caller,
        name: Block,
        old: Annotated[str, Field(min_length=1, description="The exact text to replace. It must occur exactly once.")],
        new: Annotated[str, Field(description="The new text. If empty, the old text is deleted.")],
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Replace a text in a core block."""
        block = self._memory.core.replace(name, old, new, **self._owner(caller, namespace))
        return {"block": cut_json(block, _PART)}

    @tool("Search conversations", Hints(PERMISSIONS["conversation_search"], idempotent=True))
    def conversation_search(
        self,
        caller: Caller,
        query: Query,
        session_id: Annotated[str | None, Field(description="Search only in this conversation.")] = None,
        limit: Limit = 10,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Find messages of this and former conversations in their original words, even if they were summarized."""
        hits = self._memory.search(
            query,
            limit=limit,
            kinds=(_MESSAGE,),
            session_id=session_id,
            include_summarized=True,
            **caller.search_scope(namespace),
        )
        return {"messages": [brief_hit_json(hit, _PART) for hit in hits], "warnings": list(hits.warnings)}

    @tool("Summarise older messages", Hints(PERMISSIONS["memory_consolidate"], idempotent=True))
    def memory_consolidate(
        self,
        caller: Caller,
        session_id: Annotated[str | None, Field(description="Summarize only this conversation.")] = None,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Replace older messages by summaries. The original messages are kept and can be restored."""
        namespace = caller.namespace_for(namespace)
        session = caller.session_id if session_id is None else session_id
        if caller.is_restricted:
            self._check_session(caller, namespace, session)
        limits = {"user_id": caller.user_id, "project": caller.project}
        return report_json(self._memory.clean(namespace=namespace, session_id=session, **limits))

    @tool("Learn facts from messages", Hints(PERMISSIONS["memory_learn"], idempotent=True))
    def memory_learn(
        self,
        caller: Caller,
        session_id: Annotated[str | None, Field(description="Read only this conversation.")] = None,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Store the facts that people have stated in messages that were not read before, each with the words that prove
        it. The same message is read only once."""
        namespace = caller.namespace_for(namespace)
        session = caller.session_id if session_id is None else session_id
        if caller.is_restricted:
            self._check_session(caller, namespace, session)
        owner: dict[str, Any] = {"user_id": caller.user_id, "project": caller.project}
        return report_json(self._memory.learn(session, namespace=namespace, **owner))

    @tool("Show what is known about a person", Hints(PERMISSIONS["memory_profile"], idempotent=True))
    def memory_profile(
        self,
        caller: Caller,
        user_id: Annotated[
            str | None, Field(min_length=1, max_length=MAX_NAME, description="The person. Omit for the present user.")
        ] = None,
        max_tokens: Annotated[int, Field(ge=1, le=8_000, description="The maximum size in tokens.")] = 1_000,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Show what holds now about a person: facts, preferences and core blocks in groups, each with its source and
        its time. Former values are left out."""
        user = caller.user_id if user_id is None else user_id
        if user is None:
            raise InvalidInput("user_id", "is missing; give the user whose profile is wanted")
        if caller.user_id not in (None, user):
            raise NotFound(f"there is no user {user:.{MAX_NAME}}")
        namespace = caller.namespace_for(namespace)
        owner = {"agent_id": caller.agent_id, "project": caller.project}
        found = self._memory.profile(user, namespace=namespace, max_tokens=max_tokens, **owner)
        return report_json(found)

    @tool("Audit memories", Hints(PERMISSIONS["memory_audit"], idempotent=True))
    def memory_audit(self, caller: Caller, namespace: Namespace = None) -> dict[str, Any]:
        """Report duplicates, facts and core blocks that contradict each other, memories that nobody reads, and core
        blocks that are too large."""
        namespace = caller.namespace_for(namespace)
        return report_json(self._memory.audit(namespace=namespace, user_id=caller.user_id, project=caller.project))

    @tool("Show what is remembered", Hints(PERMISSIONS["memory_status"], idempotent=True))
    def memory_status(self, caller: Caller, namespace: Namespace = None) -> dict[str, Any]:
        """Count the memories, and the memories that have no vectors yet."""
        namespace = caller.namespace_for(namespace)
        scope = Scope(namespace, user_id=caller.user_id, project=caller.project)
        counts: dict[str, Any] = {tier: self._backend.count(replace(scope, tiers=(tier,))) for tier in TIERS}
        if caller.is_restricted:
            blocks = self._memory.core.blocks(**self._owner(caller, namespace))
            counts["core"] = sum(block.user_id == caller.user_id for block in blocks)  # core blocks have no project
        state = {
            "namespace": namespace,
            "memories": counts,
            "documents": self._backend.count(
                Scope(namespace, kinds=("document",), user_id=caller.user_id, or_nobody=True)
            ),
            "pending": vectors_of(self._backend).pending(scope),
        }
        everywhere = caller.grant.may("admin") and not caller.grant.namespaces
        return {**state, "store": dict(self._status())} if everywhere else state

    def _check_session(self, caller: Caller, namespace: str, session: str | None) -> None:
        """Check that the session can be summarized. Raises `InvalidInput` if `session` is None, and `NotFound` if the
        session has no message that the caller can see."""
        if session is None:
            raise InvalidInput("session_id", "is missing; give the session to summarize")
        scope = Scope(namespace, kinds=(_MESSAGE,), session_id=session, include_archived=True)
        if not self._backend.count(replace(scope, user_id=caller.user_id, project=caller.project)):
            raise NotFound(f"there is no session {session:.{MAX_NAME}}")

    def _visible(self, caller: Caller, id: str) -> MemoryEntry:
        """Return the entry with this id, without counting a use of the entry. Raises `NotFound` if there is no such
        entry, or if the caller may not see the entry."""
        entries = self._backend.get([id])
        if not entries:
            raise NotFound(f"there is no entry {id}")
        return caller.require_visible(entries[0])

    def _owner(self, caller: Caller, namespace: str | None) -> dict[str, Any]:
        return {"namespace": caller.namespace_for(namespace), "agent_id": caller.agent_id, "user_id": caller.user_id}
