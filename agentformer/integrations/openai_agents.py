"""OpenAI Agents SDK: a session that stores the items and the messages of a conversation, and function tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentformer.errors import AgentFormerError, InvalidInput
from agentformer.factory import AgentFormer
from agentformer.integrations import TOOLS, missing, owned, tools_named
from agentformer.memory import validation
from agentformer.memory.backends import all_entries
from agentformer.records import fields
from agentformer.tools.caller import Caller
from agentformer.types import DEFAULT_NAMESPACE, UNSEARCHED_KIND, MemoryEntry, Scope, new_id

try:
    from agents import FunctionTool
    from agents.memory import SessionABC
except ImportError as error:
    raise missing("openai_agents", error) from error

_TYPE = "openai_agents"
_FOREIGN = object()  # instead of the item of an entry that another program has stored


class AgentFormerSession(SessionABC):
    """A session of the Agents SDK. Every item of the conversation (a message, or a call of a tool) is stored unchanged
    in an entry that no search returns. With `remember`, the texts of users and assistants are also stored as messages
    of the session, so that later conversations find them. `pop_item` and `clear_session` delete the items, and the
    messages that were made from them. A session without a `user_id` has only the items that belong to no user."""

    session_settings: Any = None

    def __init__(
        self,
        session_id: str,
        af: AgentFormer,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        user_id: str | None = None,
        remember: bool = True,
    ) -> None:
        self.session_id = session_id
        self._af = af
        self._namespace = namespace
        self._user_id = user_id
        self._remember = remember

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the last `limit` items, or all items, in order."""
        return await asyncio.to_thread(self._items, limit)

    async def add_items(self, items: Sequence[Any]) -> None:
        """Add items at the end of the session, all in one transaction. Raises `InvalidInput` if an item is not JSON or
        has more than a million characters as JSON. In this case, no item is added."""
        await asyncio.to_thread(self._add, [*items])

    async def pop_item(self) -> Any | None:
        """Delete the last item, and return it. Return None if there is no item. If several callers call this method at
        the same time, each item is returned only once."""
        return await asyncio.to_thread(self._pop)

    async def clear_session(self) -> None:
        """Delete all items of the session."""
        await asyncio.to_thread(self._clear)

    def _entries(self) -> list[tuple[MemoryEntry, Any]]:
        """Return the entries of the session with their items. Entries that other programs have stored are left out."""
        scope = Scope(
            self._namespace,
            session_id=self.session_id,
            source_type=_TYPE,
            kinds=(UNSEARCHED_KIND,),
            **owned(user_id=self._user_id),
        )
        pairs = ((entry, _decoded(entry.content)) for entry in all_entries(self._af.backend, scope))
        return [(entry, item) for entry, item in pairs if item is not _FOREIGN]

    def _items(self, limit: int | None) -> list[Any]:
        settings = self.session_settings
        limit = limit if limit is not None else getattr(settings, "limit", None)
        items = [item for _, item in self._entries()]
        return items if limit is None else items[-limit:] if limit > 0 else []

    def _add(self, items: list[Any]) -> None:
        place = {"session_id": self.session_id, "namespace": self._namespace, "user_id": self._user_id}
        common: dict[str, Any] = {**place, "source_type": _TYPE, "searchable": False, "verbatim": True}
        messages: list[MemoryEntry] = []
        entries: list[Mapping[str, Any]] = []
        for number, item in enumerate(items):
            entry = {"content": _encoded(number, item), "source_id": new_id()}
            if self._remember and (message := _message(item)):
                messages.append(validation.new_message({**message, **place}))
                entry["pair_id"] = messages[-1].id  # they are deleted together
            entries.append(entry)
        self._af.memory.add_checked([*messages, *validation.new_entries(entries, common)])

    def _pop(self) -> Any | None:
        while entries := self._entries():
            if self._af.memory.remove_many(_with_messages(entries[-1:])):
                return entries[-1][1]
        return None

    def _clear(self) -> None:
        self._af.memory.remove_many(_with_messages(self._entries()))


def function_tools(
    af: AgentFormer, names: Sequence[str] = TOOLS, *, caller: Caller | None = None
) -> list[FunctionTool]:
    """Return tools of the memory as function tools. `caller` limits the rights of the tools; by default, they have all
    rights. A call runs in a thread, and an error is returned to the model as a text. Raises `InvalidInput` for an
    unknown name."""
    return [_tool(af, definition, caller or Caller()) for definition in tools_named(af, names)]


def _tool(af: AgentFormer, definition: Any, caller: Caller) -> FunctionTool:
    async def invoke(context: Any, arguments: str) -> str:
        try:
            result = await asyncio.to_thread(af.toolbox.call, definition.name, json.loads(arguments or "{}"), caller)
        except (AgentFormerError, ValueError, RecursionError) as error:
            return f"Error: {error}"
        return json.dumps(result, ensure_ascii=False)

    return FunctionTool(
        definition.name, definition.description, definition.parameters, invoke, strict_json_schema=False
    )


def _with_messages(entries: Sequence[tuple[MemoryEntry, Any]]) -> list[str]:
    return [id_ for entry, _ in entries for id_ in (entry.id, entry.pair_id) if id_]


def _encoded(number: int, item: Any) -> str:
    """Return an item as JSON. Raises `InvalidInput` for an item that an entry cannot contain."""
    try:
        text = json.dumps(item, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"items[{number}]", f"is not JSON ({error}); no item was added") from error
    if len(text) > fields.MAX_CONTENT:
        problem = f"has {len(text)} characters as JSON, but the limit is {fields.MAX_CONTENT}"
        raise InvalidInput(
            f"items[{number}]", f"{problem}; no item was added. Shorten this item, such as the output of a tool"
        )
    return text


def _decoded(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return _FOREIGN


def _message(item: Any) -> dict[str, Any] | None:
    """Return the role (user or assistant) and the text of an item that is a message to remember, or else None."""
    if not isinstance(item, dict) or item.get("role") not in ("user", "assistant"):
        return None
    content = item.get("content")
    parts = (
        [content]
        if isinstance(content, str)
        else [part.get("text", "") for part in content or () if isinstance(part, dict)]
    )
    text = "\n".join(part for part in parts if isinstance(part, str) and part.strip())
    return {"role": item["role"], "content": text} if text else None
