"""The formats of chat exports: ChatGPT (the current branch of `mapping`), Claude (`chat_messages`), and single messages
with a role and a content. The formats of agents and of other memories are in `agents_and_memories`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentformer.archive.chats.agents_and_memories import chat_from, source_of
from agentformer.archive.chats.fields import ROLES, clean, id_of, joined, list_of, object_of, text_of, time_of
from agentformer.archive.chats.items import Chat, ChatMessage
from agentformer.errors import InvalidInput
from agentformer.records import fields

CHATGPT, CLAUDE, PLAIN = "chatgpt", "claude", "chat"  # the types of the records of messages
_SPEAKERS = {CHATGPT: "ChatGPT", CLAUDE: "Claude"}
_TIMES = ("time", "timestamp", "created_at", "create_time", "date", "occurred_at", "ts")
_SESSIONS = ("session", "session_id", "conversation_id", "conversation", "thread_id")
_CONTENTS = ("content", "text", "message")


def is_chat(value: Any) -> bool:
    """Return whether a JSON value is a conversation or a message of a known format."""
    if not isinstance(value, dict):
        return False
    plain = "role" in value and any(name in value for name in _CONTENTS)
    return "mapping" in value or "chat_messages" in value or plain or bool(source_of(value))


def chat_of(value: Any) -> Chat:
    """Convert a JSON value to a conversation. A single message becomes a conversation with the id of its session.
    Raises `InvalidInput` if the format is not known or a field is wrong."""
    if source := source_of(value):
        return chat_from(value, source)
    if not is_chat(value):
        wanted = "`mapping` (ChatGPT), `chat_messages` (Claude), `role` and `content`, or a form of docs/MIGRATING.md"
        raise InvalidInput("conversation", f"must be a JSON object with {wanted}")
    if "mapping" in value:
        return _chatgpt(value)
    return _claude(value) if "chat_messages" in value else _plain(value)


def name_of(value: Any, number: int) -> str:
    """Return the name of a conversation in a report: its number in the file, and its title or id."""
    title = ""
    if isinstance(value, dict):
        named = (value.get(key) for key in ("title", "name", "conversation_id", "id", "uuid"))
        title = next((text for text in named if isinstance(text, str) and text), "")
    return f"conversation {number}" + (f" ({clean(title)[:80]})" if title else "")


def _chatgpt(value: Mapping[str, Any]) -> Chat:
    """Convert a conversation of ChatGPT. A message without a time gets the time of the message before it."""
    at = time_of(value.get("create_time"))
    chat_id, messages, skipped = _required("conversation_id", id_of(value, "conversation_id", "id")), [], 0
    for node_id, message in _branch(value):
        role = ROLES.get(text_of(object_of(message, "author"), "role").lower(), "")
        text = _chatgpt_text(message.get("content"))
        metadata = object_of(message, "metadata")
        hidden = message.get("weight") == 0 or metadata.get("is_visually_hidden_from_conversation")
        to_tool = message.get("recipient") not in (None, "all")
        if role not in ("user", "assistant") or fields.is_blank(text) or hidden or to_tool:
            skipped += 1
            continue
        at = time_of(message.get("create_time")) or at
        speaker = text_of(object_of(message, "author"), "name") or (_SPEAKERS[CHATGPT] if role == "assistant" else "")
        messages.append(ChatMessage(id_of(message, "id") or node_id, role, text, at, speaker))
    return Chat(CHATGPT, chat_id, text_of(value, "title"), messages, skipped)


def _branch(value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the id and the message of each node of a ChatGPT conversation, from the root to the current node. Raises
    `InvalidInput` if `mapping` is not an object of nodes, a node on this path is missing, or the path is a cycle."""
    mapping = value["mapping"]
    if not isinstance(mapping, dict) or not all(isinstance(node, dict) for node in mapping.values()):
        raise InvalidInput("mapping", "must be an object of nodes")
    node_id: Any = value.get("current_node") or _last_leaf(mapping)
    branch: list[tuple[str, Mapping[str, Any]]] = []
    seen: set[str] = set()
    while node_id is not None:
        if not isinstance(node_id, str) or node_id not in mapping:
            problem = f"has no node {str(node_id)[:80]!r}, which another node or current_node names"
            raise InvalidInput("mapping", problem)
        if node_id in seen:
            raise InvalidInput("mapping", f"has a cycle: {node_id[:80]!r} is its own ancestor")
        seen.add(node_id)
        node = mapping[node_id]
        if isinstance(message := node.get("message"), dict):
            branch.append((node_id, message))
        node_id = node.get("parent")
    yield from reversed(branch)


def _last_leaf(mapping: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the id of the newest node without children, or None. It replaces a missing `current_node`."""
    parents = {str(node.get("parent")) for node in mapping.values()}
    leaves = [(node_id, object_of(node, "message").get("create_time")) for node_id, node in mapping.items()]
    times = {node_id: at if isinstance(at, (int, float)) else 0 for node_id, at in leaves if node_id not in parents}
    return max(times, key=lambda node_id: times[node_id], default=None)


def _chatgpt_text(content: Any) -> str:
    if not isinstance(content, dict):
        return content if isinstance(content, str) else ""
    if content.get("content_type") not in (None, "text", "multimodal_text", "code"):
        return ""  # thoughts, results of tools, instructions of the user for every conversation
    return joined(content.get("parts")) or text_of(content, "text")


def _claude(value: Mapping[str, Any]) -> Chat:
    """Convert a conversation of Claude. A message without a time gets the time of the message before it."""
    chat_id, messages, skipped = _required("uuid", id_of(value, "uuid", "id")), [], 0
    if not isinstance(value["chat_messages"], list):
        raise InvalidInput("chat_messages", "must be a list")
    at = time_of(value.get("created_at"))
    for message in value["chat_messages"]:
        if not isinstance(message, dict):
            raise InvalidInput("chat_messages", "must contain objects")
        role = ROLES.get(text_of(message, "sender").lower(), "")
        text = joined(message.get("content")) or text_of(message, "text")
        files = [*list_of(message, "attachments"), *list_of(message, "files")]
        names = tuple(clean(each["file_name"]) for each in files if isinstance(each, dict) and each.get("file_name"))
        if role not in ("user", "assistant") or fields.is_blank(text):
            skipped += 1
            continue
        at = time_of(message.get("created_at")) or at
        speaker = _SPEAKERS[CLAUDE] if role == "assistant" else ""
        messages.append(ChatMessage(id_of(message, "uuid"), role, text, at, speaker, names))
    return Chat(CLAUDE, chat_id, text_of(value, "name"), messages, skipped)


def _plain(value: Mapping[str, Any]) -> Chat:
    """Return a conversation of one message, or of none if the message has no text or is from the system."""
    session = id_of(value, *_SESSIONS)
    role = ROLES.get(text_of(value, "role").lower(), "")
    if not role:
        raise InvalidInput(
            "role", f"must be user, assistant, system, developer or tool, got {str(value.get('role'))[:80]!r}"
        )
    texts = (text_of(value, name) or joined(value.get(name)) for name in _CONTENTS)
    text = next((text for text in texts if not fields.is_blank(text)), "")
    if not text or role == "system":
        return Chat(PLAIN, session, skipped=1)
    at = next((time_of(value[name], name) for name in _TIMES if value.get(name) not in (None, "")), None)
    speaker = text_of(value, "speaker") or text_of(value, "name")
    return Chat(PLAIN, session, messages=[ChatMessage(id_of(value, "id"), role, text, at, speaker)])


def digest_of(chat_id: str, message: ChatMessage, repeated: int) -> str:
    """Return an id for a message that has none: a hash of its conversation, role, speaker, text and time. For a message
    without a time, `repeated` is the number of equal messages before it; otherwise, it is 0."""
    at = message.time.isoformat() if message.time else ""
    values = [chat_id, message.role, message.speaker, message.text, at, repeated]
    return hashlib.sha256(json.dumps(values, ensure_ascii=False).encode()).hexdigest()[:32]


def _required(name: str, value: str) -> str:
    if not value.strip():
        raise InvalidInput(name, "is missing; without it, a repeated import would not recognise the conversation")
    return value
