"""Formats of agents and of other memories: transcripts of Claude Code and Codex, files of LangChain messages, and the
exports of mem0, Zep, Letta and Chroma. The formats are those of November 2026; unknown fields are ignored.

What a person and an agent said becomes messages, what a memory has learnt becomes facts, and uses of tools are kept as
entries that no search returns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from agentformer.archive.chats.chroma import CHROMA, chroma_chat
from agentformer.archive.chats.fields import ROLES, clean, id_of, joined, list_of, object_of, text_of, time_of
from agentformer.archive.chats.items import Chat, ChatMessage
from agentformer.errors import InvalidInput
from agentformer.records import fields

CLAUDE_CODE, CODEX, LANGCHAIN = "claude-code", "codex", "langchain"
MEM0, ZEP, LETTA = "mem0", "zep", "letta"
_CLAUDE_CODE_TYPES = frozenset({"user", "assistant", "system", "summary", "progress", "attachment", "queue-operation"})
_CODEX_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_LANGCHAIN_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
_COMMAND = ("<command-", "<local-command-", "<system-reminder>", "Caveat: The messages below")  # not said by the person
_LONGEST_TOOL = 4_000  # characters of the use of a tool that are kept


def source_of(value: Any) -> str:
    """Return the format of a JSON value, or "" if it has none of the formats of this module."""
    if not isinstance(value, dict):
        return ""
    if CHROMA in value and "metadata" in value:
        return CHROMA
    kind = value.get("type")
    if kind in _CODEX_TYPES and "payload" in value:
        return CODEX
    if (
        kind in _CLAUDE_CODE_TYPES and ("sessionId" in value or "leafUuid" in value)
    ) or kind == "file-history-snapshot":
        return CLAUDE_CODE
    if kind in _LANGCHAIN_ROLES and isinstance(value.get("data"), dict):
        return LANGCHAIN
    if _is_mem0(value) or _is_list_of(value, "results", _is_mem0):
        return MEM0
    if _is_zep(value) or any(_is_list_of(value, name, _is_zep) for name in ("facts", "edges", "messages")):
        return ZEP
    if "agent_type" in value or (isinstance(value.get("agents"), list) and "blocks" in value):
        return LETTA
    return ""


def parts_of(value: Any) -> list[Any]:
    """Return the items of a list of memories (mem0, Zep), each with what the list says of all, or the value itself. So
    an item that cannot be used does not hide the others."""
    source = source_of(value)
    names = {MEM0: ("results",), ZEP: ("facts", "edges", "messages")}.get(source, ())
    lists = [value[name] for name in names if isinstance(value.get(name), list)]
    session = {"session_id": id_of(value, "session_id", "thread_id")} if source == ZEP else {}
    items = [each for items in lists for each in items]
    return [{**session, **each} if isinstance(each, dict) else each for each in items] if lists else [value]


def chat_from(value: Mapping[str, Any], source: str) -> Chat:
    """Convert a JSON value of the format `source`. Raises `InvalidInput` if a field is wrong."""
    return _READERS[source](value)


def _claude_code(value: Mapping[str, Any]) -> Chat:
    """Convert a line of a session of Claude Code (`~/.claude/projects/PROJECT/SESSION.jsonl`)."""
    session, at = text_of(value, "sessionId"), time_of(value.get("timestamp"))
    message, role = object_of(value, "message"), text_of(value, "type")
    if role not in ("user", "assistant") or not session:
        return Chat(CLAUDE_CODE, session)  # a summary, a state of the program
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    owner = {"project": text_of(value, "cwd")}
    text = joined([part for part in parts if not isinstance(part, dict) or part.get("type") in (None, "text")])
    said = not fields.is_blank(text) and not text.startswith(_COMMAND) and not value.get("isMeta")
    found, key = [], id_of(value, "uuid")
    if said and not value.get("isSidechain"):
        found.append(ChatMessage(key, role, text, at, "Claude" if role == "assistant" else "", owner=owner))
    for number, part in enumerate(parts):
        if isinstance(part, dict) and (used := _used(part)):
            found.append(ChatMessage(f"{key}/{number}", "tool", used, at, kind="tool", owner=owner))
    return Chat(CLAUDE_CODE, session, messages=found, skipped=int(not found))


def _used(part: Mapping[str, Any]) -> str:
    """Return the call or the result of a tool in a part of a message, or ""."""
    if part.get("type") == "tool_use":
        return clean(f"{text_of(part, 'name')}: {json.dumps(part.get('input'), ensure_ascii=False)}")[:_LONGEST_TOOL]
    if part.get("type") != "tool_result":
        return ""
    content = part.get("content")
    return (clean(content) if isinstance(content, str) else joined(content))[:_LONGEST_TOOL]


def _codex(value: Mapping[str, Any]) -> Chat:
    """Convert a line of a session of Codex (`~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`). Only the first line has
    the id of the session and the working folder; `Chat.opens` is True for this line."""
    payload, at = object_of(value, "payload"), time_of(value.get("timestamp"))
    if value.get("type") == "session_meta":
        return Chat(CODEX, id_of(payload, "id", "session_id"), opens=True, owner={"project": text_of(payload, "cwd")})
    if value.get("type") != "response_item":
        return Chat(CODEX, "")
    kind, role = text_of(payload, "type"), ROLES.get(text_of(payload, "role"), "")
    if kind == "message" and role in ("user", "assistant"):
        text = joined(payload.get("content"))
        if fields.is_blank(text) or text.startswith(("<environment_context>", "<user_instructions>", "# AGENTS.md")):
            return Chat(CODEX, "", skipped=1)
        return Chat(CODEX, "", messages=[ChatMessage("", role, text, at, "Codex" if role == "assistant" else "")])
    if kind in ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"):
        said = payload.get("arguments", payload.get("output", payload.get("input")))
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        used = clean(f"{text_of(payload, 'name')}: {text}".removeprefix(": "))[:_LONGEST_TOOL]
        message = ChatMessage(f"{kind}/{id_of(payload, 'call_id')}", "tool", used, at, kind="tool")
        return Chat(CODEX, "", messages=[message])
    return Chat(CODEX, "", skipped=1)


def _langchain(value: Mapping[str, Any]) -> Chat:
    """Convert a message as `langchain_core.messages.messages_to_dict` writes it."""
    data, role = object_of(value, "data"), _LANGCHAIN_ROLES[value["type"]]
    content = data.get("content")
    text = clean(content) if isinstance(content, str) else joined(content)
    if fields.is_blank(text) or role == "system":
        return Chat(LANGCHAIN, "", skipped=1)
    kind: Literal["tool", "message"] = "tool" if role == "tool" else "message"
    at = time_of(object_of(data, "additional_kwargs").get("timestamp"))
    message = ChatMessage(id_of(data, "id"), role, text, at, text_of(data, "name"), kind=kind)
    return Chat(LANGCHAIN, "", messages=[message])


def _is_mem0(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("memory"), str) and "id" in value


def _mem0(value: Mapping[str, Any]) -> Chat:
    """Convert a memory of the result of `Memory.get_all`."""
    owner = {name: id_of(value, name) for name in ("user_id", "agent_id")}
    fact = _fact(id_of(value, "id"), text_of(value, "memory"), value, owner, object_of(value, "metadata"))
    found = [fact._replace(session=id_of(value, "run_id"))] if fact else []
    return Chat(MEM0, MEM0, messages=found, skipped=int(not found))


def _is_zep(value: Mapping[str, Any]) -> bool:
    named = isinstance(value.get("uuid") or value.get("uuid_"), str)
    return named and ("fact" in value or ("role_type" in value and "content" in value))


def _zep(value: Mapping[str, Any]) -> Chat:
    """Convert a fact (an edge of the graph) or a message of Zep."""
    key, session = id_of(value, "uuid", "uuid_"), id_of(value, "session_id", "thread_id")
    if "fact" in value:
        fact = _fact(key, text_of(value, "fact"), value, {"user_id": id_of(value, "user_id")}, {})
        valid = {"valid_from": time_of(value.get("valid_at")), "valid_to": time_of(value.get("invalid_at"))}
        return Chat(ZEP, "", messages=[fact._replace(values=valid)] if fact else [], skipped=int(not fact))
    role, text = ROLES.get(text_of(value, "role_type").lower(), ""), text_of(value, "content")
    if role not in ("user", "assistant") or fields.is_blank(text):
        return Chat(ZEP, session, skipped=1)
    at = time_of(value.get("created_at"))
    return Chat(ZEP, session, messages=[ChatMessage(key, role, text, at, text_of(value, "role"))])


def _letta(value: Mapping[str, Any]) -> Chat:
    """Convert an agent file (`.af`): blocks of the core memory become facts, and messages a session of each agent."""
    found: list[ChatMessage] = []
    agents = value["agents"] if isinstance(value.get("agents"), list) else [value]
    blocks = [*list_of(value, "blocks"), *list_of(value, "core_memory")]
    for number, block in enumerate(blocks):
        if isinstance(block, dict):
            key, label = id_of(block, "id") or f"block {number}", text_of(block, "label")
            fact = _fact(key, text_of(block, "value"), block, {}, {})
            found += [fact._replace(values={"title": label})] if fact else []
    for agent in agents:
        if not isinstance(agent, dict):
            raise InvalidInput("agents", "must contain objects")
        session = id_of(agent, "id", "name") or LETTA
        found += [message._replace(session=session) for message in _letta_messages(agent)]
    return Chat(LETTA, LETTA, messages=found)


def _letta_messages(agent: Mapping[str, Any]) -> Iterator[ChatMessage]:
    for number, message in enumerate(list_of(agent, "messages")):
        if not isinstance(message, dict):
            raise InvalidInput("messages", "must contain objects")
        role, content = ROLES.get(text_of(message, "role"), ""), message.get("content", message.get("text"))
        text = clean(content) if isinstance(content, str) else joined(content)
        if role == "user" and text.startswith("{"):  # Letta wraps what a person says, and notes of its own
            text = _unwrapped(text)
        if role in ("user", "assistant") and not fields.is_blank(text):
            key, at = id_of(message, "id") or f"message {number}", time_of(message.get("created_at"))
            yield ChatMessage(key, role, text, at, text_of(message, "name"))


def _unwrapped(text: str) -> str:
    try:
        said = json.loads(text)
    except ValueError:
        return text
    return text_of(said, "message") if isinstance(said, dict) and said.get("type") == "user_message" else ""


def _fact(
    key: str, text: str, value: Mapping[str, Any], owner: Mapping[str, str], metadata: Mapping[str, Any]
) -> ChatMessage | None:
    if fields.is_blank(text):
        return None
    if not key:
        raise InvalidInput("id", "is missing; without it, a repeated import would not recognise the memory")
    return ChatMessage(key, "", text, time_of(value.get("created_at")), kind="fact", owner=owner, metadata=metadata)


def _is_list_of(value: Mapping[str, Any], name: str, is_one: Any) -> bool:
    items = value.get(name)
    return isinstance(items, list) and bool(items) and isinstance(items[0], dict) and bool(is_one(items[0]))


_READERS = {
    CLAUDE_CODE: _claude_code,
    CODEX: _codex,
    LANGCHAIN: _langchain,
    MEM0: _mem0,
    ZEP: _zep,
    LETTA: _letta,
    CHROMA: chroma_chat,
}
