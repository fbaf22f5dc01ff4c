"""What an import reads: conversations, their messages, and what other memories have kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple


class ChatMessage(NamedTuple):
    """A message of a conversation, the use of a tool in it, or a fact of another memory (`kind`). `role` is one of
    `validation.ROLES`, or "" for a fact. `id` is "" if the export has none. `session` is "" for the session of the
    conversation. `owner` has the owners that the export names, and `values` are further arguments of `store`."""

    id: str
    role: str
    text: str
    time: datetime | None = None
    speaker: str = ""
    attachments: tuple[str, ...] = ()  # names of files
    kind: Literal["message", "tool", "fact"] = "message"
    session: str = ""
    owner: Mapping[str, str] = {}
    metadata: Mapping[str, Any] = {}
    values: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, with its messages in order. `skipped` is the number of messages that are left out: messages of
    the system, hidden messages, calls and results of tools, and messages without text. If `opens` is True, `id` and
    `owner` are those of all conversations that follow in the file."""

    source: str
    id: str
    title: str = ""
    messages: list[ChatMessage] = field(default_factory=list)
    skipped: int = 0
    opens: bool = False
    owner: Mapping[str, str] = field(default_factory=dict)
