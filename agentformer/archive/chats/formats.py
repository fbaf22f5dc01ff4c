"""The formats of chat exports: ChatGPT (the current branch of `mapping`), Claude (`chat_messages`), and single messages
with a role and a content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.records import fields

CHATGPT, CLAUDE, PLAIN = "chatgpt", "claude", "chat"  # the types of the records of messages
_SPEAKERS = {CHATGPT: "ChatGPT", CLAUDE: "Claude"}
_ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "ai", "bot", "chatbot", "gpt", "model"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),  # the newer name of OpenAI
    **dict.fromkeys(("tool", "function", "ipython", "observation"), "tool"),
}
_TIMES = ("time", "timestamp", "created_at", "create_time", "date", "occurred_at", "ts")
_SESSIONS = ("session", "session_id", "conversation_id", "conversation", "thread_id")
_CONTENTS = ("content", "text", "message")
_MILLISECONDS = 1e11  # a larger number of seconds would be after the year 5138
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation. `role` is one of `validation.ROLES`. `id` is "" if the export has none."""

    id: str
    role: str
    text: str
    time: datetime | None = None
    speaker: str = ""
    attachments: tuple[str, ...] = ()  # names of files


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, with its messages in order. `skipped` is the number of messages that are left out: messages of
    the system, hidden messages, calls and results of tools, and messages without text."""

    source: str
    id: str
    title: str = ""
    messages: list[ChatMessage] = field(default_factory=list)
    skipped: int = 0


def is_chat(value: Any) -> bool:
    """Return whether a JSON value is a conversation or a message of a known format."""
    return isinstance(value, dict) and (
        "mapping" in value or "chat_messages" in value or ("role" in value and any(name in value for name in _CONTENTS))
    )


def chat_of(value: Any) -> Chat:
    """Convert a JSON value to a conversation. A single message becomes a conversation with the id of its session.
    Raises `InvalidInput` if the format is not known or a field is wrong."""
    if not is_chat(value):
        wanted = "`mapping` (ChatGPT), `chat_messages` (Claude), or `role` and `content`"
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
    started = _time(value.get("create_time"))
    chat_id, messages, skipped = _required("conversation_id", _id(value, "conversation_id", "id")), [], 0
    for node_id, message in _branch(value):
        role = _ROLES.get(_text(_object(message, "author"), "role").lower(), "")
        text = _chatgpt_text(message.get("content"))
        hidden = message.get("weight") == 0 or _object(message, "metadata").get("is_visually_hidden_from_conversation")
        to_tool = message.get("recipient") not in (None, "all")
        if role not in ("user", "assistant") or fields.is_blank(text) or hidden or to_tool:
            skipped += 1
            continue
        started = _time(message.get("create_time")) or started
        speaker = _text(_object(message, "author"), "name") or (_SPEAKERS[CHATGPT] if role == "assistant" else "")
        messages.append(ChatMessage(_id(message, "id") or node_id, role, text, started, speaker))
    return Chat(CHATGPT, chat_id, _text(value, "title"), messages, skipped)


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
            raise InvalidInput(
                "mapping", f"has no node {str(node_id)[:80]!r}, which another node or current_node names"
            )
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
    leaves = [(node_id, _object(node, "message").get("create_time")) for node_id, node in mapping.items()]
    times = {node_id: at if isinstance(at, (int, float)) else 0 for node_id, at in leaves if node_id not in parents}
    return max(times, key=lambda node_id: times[node_id], default=None)


def _chatgpt_text(content: Any) -> str:
    if not isinstance(content, dict):
        return content if isinstance(content, str) else ""
    if content.get("content_type") not in (None, "text", "multimodal_text", "code"):
        return ""  # thoughts, results of tools, instructions of the user for every conversation
    return _joined(content.get("parts")) or _text(content, "text")


def _claude(value: Mapping[str, Any]) -> Chat:
    chat_id, messages, skipped = _required("uuid", _id(value, "uuid", "id")), [], 0
    if not isinstance(value["chat_messages"], list):
        raise InvalidInput("chat_messages", "must be a list")
    at = _time(value.get("created_at"))
    for message in value["chat_messages"]:
        if not isinstance(message, dict):
            raise InvalidInput("chat_messages", "must contain objects")
        role = _ROLES.get(_text(message, "sender").lower(), "")
        text = _joined(message.get("content")) or _text(message, "text")
        files = [*_list(message, "attachments"), *_list(message, "files")]
        names = tuple(clean(each["file_name"]) for each in files if isinstance(each, dict) and each.get("file_name"))
        if role not in ("user", "assistant") or fields.is_blank(text):
            skipped += 1
            continue
        at = _time(message.get("created_at")) or at
        speaker = _SPEAKERS[CLAUDE] if role == "assistant" else ""
        messages.append(ChatMessage(_id(message, "uuid"), role, text, at, speaker, names))
    return Chat(CLAUDE, chat_id, _text(value, "name"), messages, skipped)


def _plain(value: Mapping[str, Any]) -> Chat:
    session = _id(value, *_SESSIONS)
    role = _ROLES.get(_text(value, "role").lower(), "")
    if not role:
        raise InvalidInput(
            "role", f"must be user, assistant, system, developer or tool, got {str(value.get('role'))[:80]!r}"
        )
    texts = (_text(value, name) or _joined(value.get(name)) for name in _CONTENTS)
    text = next((text for text in texts if not fields.is_blank(text)), "")
    if not text or role == "system":
        return Chat(PLAIN, session, skipped=1)
    at = next((_time(value[name], name) for name in _TIMES if value.get(name) not in (None, "")), None)
    speaker = _text(value, "speaker") or _text(value, "name")
    return Chat(PLAIN, session, messages=[ChatMessage(_id(value, "id"), role, text, at, speaker)])


def digest_of(chat_id: str, message: ChatMessage, repeated: int) -> str:
    """Return an id for a message that has none: a hash of its conversation, role, speaker, text and time. For a message
    without a time, `repeated` is the number of equal messages before it; otherwise, it is 0."""
    at = message.time.isoformat() if message.time else ""
    values = [chat_id, message.role, message.speaker, message.text, at, repeated]
    return hashlib.sha256(json.dumps(values, ensure_ascii=False).encode()).hexdigest()[:32]


def clean(value: Any) -> str:
    """Return a value as text. A half of a surrogate pair, as in a text that was cut in an emoji, becomes U+FFFD."""
    return _SURROGATE.sub("\ufffd", str(value))


def _joined(parts: Any) -> str:
    """Join the texts of a list of parts. A part is a text, or an object with a field `text`."""
    if not isinstance(parts, list):
        return ""
    texts = [part if isinstance(part, str) else _text(part, "text") if isinstance(part, dict) else "" for part in parts]
    return clean("\n\n".join(text for text in texts if text.strip()))


def _time(value: Any, name: str = "time") -> datetime | None:
    """Return the time that a value describes: seconds or milliseconds since 1970, or ISO 8601. A time without a time
    zone is in UTC. Return None for None and "". Raises `InvalidInput` with the field `name` for any other value."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > _MILLISECONDS else value, UTC)
        moment = datetime.fromisoformat(value)
        return fields.moment(name, moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (TypeError, ValueError, OverflowError, OSError):
        reason = "must be ISO 8601, or seconds since 1970"
        raise InvalidInput(name, f"{reason}, got {str(value)[:80]!r}") from None


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    return clean(text) if isinstance(text, str) else ""


def _id(value: Mapping[str, Any], *names: str) -> str:
    """Return the first field of `names` that has an id, as text, or "". An id is a number, or a text that is not blank.
    The numbers 1 and 1.0 are the same id."""
    for name in names:
        each = value.get(name)
        if isinstance(each, float) and each.is_integer():
            each = int(each)
        if isinstance(each, (str, int, float)) and not isinstance(each, bool) and str(each).strip():
            return clean(each)
    return ""


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def _list(value: Mapping[str, Any], name: str) -> list[Any]:
    inner = value.get(name)
    return inner if isinstance(inner, list) else []


def _required(name: str, value: str) -> str:
    if not value.strip():
        raise InvalidInput(name, "is missing; without it, a repeated import would not recognise the conversation")
    return value
