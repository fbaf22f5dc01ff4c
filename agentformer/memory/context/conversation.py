"""What was said, in whatever form a caller has it, as messages that a context can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentformer.errors import InvalidInput
from agentformer.memory.prompt_markers import without_recalled
from agentformer.records import fields
from agentformer.text.prompt_quoting import strip_template_tokens, wrap_in_tag
from agentformer.types import ChatMessage, MemoryEntry

_Role = Literal["system", "user", "assistant"]
_ROLES: tuple[_Role, ...] = get_args(_Role)
# What a tool gave, and what was kept in the role of the system, is data for the model, in the user's role.
_TOOL, _SYSTEM = "tool", "system"
_FRAMES = {_TOOL: "tool-result", _SYSTEM: "note"}


@dataclass(frozen=True, slots=True)
class Said:
    """A message, and the id by which a report names it. `entry_id` is None for what is no entry, and `given` what the
    message holds in a frame, since no user said it."""

    message: ChatMessage
    label: str
    entry_id: str | None = None
    given: str | None = None

    @property
    def text(self) -> str:
        return self.message.content if self.given is None else self.given


def conversation_of(items: Any) -> list[Said]:
    """`ChatMessage`s, mappings with `role` and `content`, or entries, in their order, without recalled memory.

    Mappings may be in the form of OpenAI's chat API: content in parts, of which those that are no text are named
    only; calls of tools, which are passed over where nothing is said with them; and what tools gave. Raises
    `InvalidInput` naming `conversation` or the item of it that is wrong.
    """
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidInput("conversation", f"must be a list of messages, got {type(items).__name__}")
    return [_said(item, f"conversation[{n}]") for n, item in enumerate(items) if not _is_silent(item)]


def _is_silent(item: Any) -> bool:
    """Does the assistant call tools, and say nothing?"""
    if not isinstance(item, Mapping) or item.get("role") != "assistant":
        return False
    return item.get("content") is None and bool(item.get("tool_calls") or item.get("function_call"))


def _said(item: Any, label: str) -> Said:
    if isinstance(item, MemoryEntry):
        text = item.content if item.raw is None else item.raw
        return _message(item.role or "user", text, label, item.id, framed_roles=(_TOOL, _SYSTEM))
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
    return _message(role, content, label)


def _part(part: Any, label: str) -> str:
    """The text of a part of a message; an image and the like by its type."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidInput(label, "must be a part with a type, as {'type': 'text', 'text': ...}")
    text = part.get("text", "" if kind == "text" else f"[{kind}]")
    if not isinstance(text, str):
        raise InvalidInput(f"{label}.text", f"must be a string, got {type(text).__name__}")
    return text


def _message(
    role: Any, content: str, label: str, entry_id: str | None = None, framed_roles: tuple[str, ...] = (_TOOL,)
) -> Said:
    """What a tool gave stands in a frame that it cannot leave, since a model must not take it for the user's word. So
    does an entry of the role `system`: who stored it may be anybody. The caller's own messages of the system stay."""
    known, text = _role(role, label), _fresh(content)
    if role not in framed_roles or not text.strip():
        own = text if known == _SYSTEM else strip_template_tokens(text)
        return Said(ChatMessage(known, own), entry_id or label, entry_id)
    return Said(ChatMessage("user", wrap_in_tag(_FRAMES[role], text)), entry_id or label, entry_id, text)


def _role(value: Any, label: str) -> _Role:
    for role in _ROLES:
        if value == role:
            return role
    if value == _TOOL:
        return "user"
    raise InvalidInput(f"{label}.role", f"must be one of {', '.join((*_ROLES, _TOOL))}, got {str(value)[:80]!r}")


def _fresh(content: str) -> str:
    """Without what an earlier context recalled: it is recalled anew, or not at all."""
    text, ids = without_recalled(content)
    return text.strip() if ids else content
