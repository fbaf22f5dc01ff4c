"""`ContextBuilder`: builds the messages for a language model from core memory, recalled entries, the conversation and
the task, within a limited number of tokens. Core memory is always included. The tokens that remain after core memory
and the task are divided: 50% for the conversation, 20% for episodic entries, 20% for semantic entries and 10% for
standing instructions of the user. Tokens that are not used are given to the conversation first, to further relevant
entries next, and to recent episodic entries last. Messages and entries are never cut. Equal calls on an unchanged
memory give equal contexts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, Unpack

from agentformer.errors import InvalidInput
from agentformer.memory.context.blocks import Context, Turn
from agentformer.memory.context.plan import NO_ROOM, ContextPlan
from agentformer.memory.hierarchical import CoreMemory, episodic
from agentformer.memory.instructions import INSTRUCTION, instructions_in_scope
from agentformer.memory.validation import Place, place_from, without_recalled
from agentformer.records import fields
from agentformer.records.filters import parse
from agentformer.search.pipeline import for_context
from agentformer.text.analysis import MAX_QUERY
from agentformer.text.prompt_quoting import strip_template_tokens, wrap_in_tag
from agentformer.types import ChatMessage, Embedder, MemoryBackend, MemoryEntry, Query, Scope, Where

_CANDIDATES = 30  # number of hits of a search whose relevance is checked
_RECENT = 20  # number of recent episodic entries that are added last, even if they are not relevant
_INSTRUCTIONS = 100  # newest standing instructions that are read
_SESSION_MESSAGES = 200  # messages that are read if the caller gives no conversation
_LEFT_OUT = {"room": NO_ROOM, "relevance": "is not relevant to the task"}  # step of the search -> reason
# The role in which a message of each role is sent.
_SENT_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "user",
}
# Results of tools and stored system messages are data. They are sent with the role user, quoted in these tags.
_FRAMES = {"tool": "tool-result", "system": "note"}


class ContextBuilder:
    """Builds contexts from the entries of a backend. `count_tokens` counts the tokens for the language model.
    `embedder` is the embedder of the backend; without it, the cosines of hits are compared as they are."""

    def __init__(
        self,
        backend: MemoryBackend,
        count_tokens: Callable[[str], int],
        embedder: Embedder | None = None,
        *,
        max_tokens: int = 4000,
    ) -> None:
        self._backend = backend
        self._count = count_tokens
        self._embedder = embedder
        self._max_tokens = max_tokens
        self._core = CoreMemory(backend, count_tokens, block_tokens=0)  # blocks are only read, so no limit is needed

    def build(
        self,
        task: str,
        conversation: Iterable[Any] = (),
        max_tokens: int | None = None,
        *,
        where: Where | None = None,
        as_of: datetime | str | None = None,
        **place: Unpack[Place],
    ) -> Context:
        """Return a context with at most `max_tokens` tokens. Its messages contain core memory, recalled entries
        (entries that a search for the task finds), standing instructions of the user, `conversation` and `task`.

        Core memory and recalled entries are data, so they are in the first message, and its role is user. Two messages
        of the user may follow each other; `agent.conversation.alternate` joins them for models that need alternating
        roles.

        `conversation` is a list of `ChatMessage` objects, of mappings with role and content, or of entries. If
        `conversation` is empty, the last messages of the session are used. Recalled entries come from all sessions of
        the given namespace, agent, user and project. They include semantic entries without a user or without a project,
        and episodic entries that a summary has replaced. `where` is a filter of the recalled entries. The context has
        the entries that hold now, or that held at the time `as_of`.

        Raises `InvalidInput` with the name of the wrong argument. If core memory alone has more than `max_tokens`
        tokens, the error names `max_tokens`.
        """
        max_tokens = self._max_tokens if max_tokens is None else max_tokens
        _check(task, max_tokens)
        owner = place_from(place)
        session_id, moment = owner.pop("session_id"), fields.moment("as_of", as_of)
        turns = turns_of(conversation) or self._session(owner["namespace"], session_id, moment)
        scope = Scope(**owner, where=parse(where), as_of=moment)
        blocks = self._core.blocks(scope.namespace, agent_id=scope.agent_id, user_id=scope.user_id, as_of=moment)
        plan = ContextPlan(task, turns, blocks, max_tokens, self._count)
        query = plan.query()[:MAX_QUERY]
        plan.offer("instructions", self._instructions(scope, query))
        # A summary may lack the detail that is asked for, so its archived originals are searched too.
        plan.offer("episodic", self._recall(episodic(scope), query, plan))
        semantic = dataclasses.replace(scope, tiers=("semantic",), except_kinds=(INSTRUCTION,), or_nobody=True)
        plan.offer("semantic", self._recall(semantic, query, plan))
        plan.offer_spare(self._backend.latest(dataclasses.replace(scope, tiers=("episodic",)), limit=_RECENT))
        plan.fill()
        return plan.context()

    def _session(self, namespace: str, session_id: str | None, as_of: datetime | None) -> list[Turn]:
        """Return the last messages of a session as `Turn` objects, from all users, agents and projects."""
        if session_id is None:
            return []
        scope = Scope(namespace, kinds=("message",), session_id=session_id, as_of=as_of)
        return turns_of(reversed(self._backend.latest(scope, limit=_SESSION_MESSAGES)))

    def _instructions(self, scope: Scope, query: str) -> list[MemoryEntry]:
        """Return the standing instructions of the user: first those that the search for the task finds, and then the
        newest. They need not have words of the task. A repeated one is returned once."""
        kept = instructions_in_scope(scope)
        newest = self._backend.latest(kept, limit=_INSTRUCTIONS)
        searched = Query(query, kept, limit=_CANDIDATES)
        found = [hit.entry for hit in self._backend.search(searched)] if len(newest) > 1 and query.strip() else []
        by_text = {entry.content: entry for entry in (*newest[::-1], *found[::-1])}
        return [*reversed(by_text.values())]

    def _recall(self, scope: Scope, query: str, plan: ContextPlan) -> list[MemoryEntry]:
        """Return the entries in the scope that are relevant to the query, best first. Other entries that the search
        found are reported to `plan`, with the reason: they are not relevant, or too long."""
        if not query.strip():
            return []
        wanted = Query(query, scope, limit=_CANDIDATES)
        hits = self._backend.search(wanted)
        hits = for_context(hits, wanted, self._embedder, lambda hit: plan.may_fit(hit.entry.content))
        for before, after in pairwise(hits.steps):
            if after.name in _LEFT_OUT:
                kept = set(after.ids)
                plan.leave_out((id_ for id_ in before.ids if id_ not in kept), _LEFT_OUT[after.name])
        plan.warn(hits.warnings)
        return [hit.entry for hit in hits]


def _check(task: Any, max_tokens: Any) -> None:
    if not isinstance(task, str):
        raise InvalidInput("task", f"must be a string, got {type(task).__name__}")
    fields.encodable("task", task)
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise InvalidInput("max_tokens", f"must be a whole number above 0, got {max_tokens!r:.80}")


def turns_of(items: Any) -> list[Turn]:
    """Convert the messages of a conversation to `Turn` objects. `items` are `ChatMessage` objects, mappings with `role`
    and `content` (as in the chat API of OpenAI), or entries. Recalled memory in a message is removed from its text.
    Messages that only call a tool are left out. If a content has several parts, a part that is not text is replaced by
    its type, such as "[image_url]". Raises `InvalidInput` with the position of the wrong item."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidInput("conversation", f"must be a list of messages, got {type(items).__name__}")
    return [_turn(item, f"conversation[{n}]") for n, item in enumerate(items) if not _is_tool_call(item)]


def _is_tool_call(item: Any) -> bool:
    if not isinstance(item, Mapping) or item.get("role") != "assistant":
        return False
    return item.get("content") is None and bool(item.get("tool_calls") or item.get("function_call"))


def _turn(item: Any, label: str) -> Turn:
    if isinstance(item, MemoryEntry):
        # A stored system message is quoted, too, because any caller may have stored it.
        text = item.content if item.raw is None else item.raw
        return _framed_turn(item.role or "user", text, label, item.id, framed_roles=("tool", "system"))
    role: Any
    content: Any
    if isinstance(item, ChatMessage):
        role, content = item.role, item.content
    elif isinstance(item, Mapping):
        role, content = item.get("role"), item.get("content")
    else:
        raise InvalidInput(label, f"must be a message with role and content, got {type(item).__name__}")
    if isinstance(content, (list, tuple)):
        content = "\n".join(_part(part, f"{label}.content[{n}]") for n, part in enumerate(content))
    if not isinstance(content, str):
        raise InvalidInput(f"{label}.content", f"must be a string or a list of parts, got {type(content).__name__}")
    fields.encodable(f"{label}.content", content)
    return _framed_turn(role, content, label)


def _part(part: Any, label: str) -> str:
    """Return the text of a part of a message, or its type in brackets. `label` names the part in errors."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidInput(label, "must be a mapping with a type, such as {'type': 'text', 'text': ...}")
    text = part.get("text", "" if kind == "text" else f"[{kind}]")
    if not isinstance(text, str):
        raise InvalidInput(f"{label}.text", f"must be a string, got {type(text).__name__}")
    return text


def _framed_turn(
    role: Any, content: str, label: str, entry_id: str | None = None, framed_roles: tuple[str, ...] = ("tool",)
) -> Turn:
    """Return a `Turn` for a message. If the role is in `framed_roles`, the text is quoted in a tag, because a model
    must not read the text as words of the user. `label` names the message in errors."""
    if not isinstance(role, str) or role not in _SENT_ROLES:
        raise InvalidInput(f"{label}.role", f"must be one of {', '.join(_SENT_ROLES)}, got {str(role)[:80]!r}")
    sent_role = _SENT_ROLES[role]
    remaining, recalled_ids = without_recalled(content)
    text = remaining.strip() if recalled_ids else content
    if role not in framed_roles or not text.strip():
        text = text if sent_role == "system" else strip_template_tokens(text)
        return Turn(ChatMessage(sent_role, text), entry_id or label, entry_id)
    return Turn(ChatMessage("user", wrap_in_tag(_FRAMES[role], text)), entry_id or label, entry_id, text)
