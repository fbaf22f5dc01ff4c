"""The context of a prompt: the messages for a language model, and a report about what the messages contain and leave
out. One message has the text of core blocks and of recalled entries, between markers that show the model where this
text begins and ends. A context has a limited number of tokens.

Recalled source code and recalled events of a project have headings of their own. Each piece of code names its file and
lines, and each event names its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from agentformer.text.places import lines_of, place_name
from agentformer.text.prompt_quoting import escape_line, escape_text
from agentformer.types import ChatMessage, MemoryEntry, Shown

# The markers around memory in a prompt. Text between them is not stored again: see `validation.without_recalled`.
RECALLED_OPEN, RECALLED_CLOSE = "<recalled-memory>", "</recalled-memory>"
CORE_OPEN, CORE_CLOSE = "<core-memory>", "</core-memory>"
INSTRUCTIONS_OPEN, INSTRUCTIONS_CLOSE = "<standing-instructions>", "</standing-instructions>"
CODE_HEADING = "[Relevant code from codebase]"
PAST_HEADING = "[Relevant past context]"
_EVENTS = frozenset({"event", "decision", "error"})  # kinds of entries that say what happened in a project
_MAX_ATTRIBUTE = 200  # code points
_MAX_TYPE = 40  # code points of the type of an event


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An item that is not in the context, with the reason. `id` is the id of an entry, `task`, or `conversation[n]` for
    a message of the conversation."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ContextReport:
    """A report about a context. `budget` is the allowed number of tokens."""

    budget: int
    total: Annotated[int, Shown("The number of tokens of all messages.")]
    # By part: core, conversation, instructions, episodic, semantic and task.
    tokens: Annotated[Mapping[str, int], Shown("The number of tokens of each share of the context.")]
    # By the same parts, without the task.
    included: Annotated[Mapping[str, tuple[str, ...]], Shown("The ids of the entries in each share of the context.")]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...] = ()  # warnings of the searches


@dataclass(frozen=True, slots=True)
class Context:
    """Messages for a language model. If `has_memory` is True, the first message contains core blocks and recalled
    entries. Core blocks and entries contain words of documents, tools and other people, so this message is data and has
    the role user. Only system messages that the caller passed keep the role system. `entries` are the very core blocks
    and recalled entries whose text is in the messages, by part: core, instructions, episodic and semantic."""

    messages: tuple[ChatMessage, ...]
    report: ContextReport
    has_memory: bool = False
    entries: Mapping[str, tuple[MemoryEntry, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the conversation. `label` names the message in reports. If the message comes from an entry,
    `entry_id` is the id of the entry. If the message quotes a text that the user did not write, such as the result of a
    tool, `framed` is this text without the tags of the quotation."""

    message: ChatMessage
    label: str
    entry_id: str | None = None
    framed: str | None = None

    @property
    def text(self) -> str:
        return self.message.content if self.framed is None else self.framed

    @property
    def is_from_user(self) -> bool:
        return self.message.role == "user" and self.framed is None


def recalled_block(entries: Iterable[MemoryEntry]) -> str:
    """Return the text of these entries between the markers of recalled memory, each with attributes such as kind, date
    and document. The order of the entries is kept, except that code and events come last."""
    entries = list(entries)
    code = [entry for entry in entries if _is_code(entry)]
    past = [entry for entry in entries if not _is_code(entry) and (entry.tier == "episodic" or entry.kind in _EVENTS)]
    if not code and not any(entry.kind in _EVENTS or "event_type" in entry.metadata for entry in past):
        past = []
    others = [entry for entry in entries if entry not in code and entry not in past]
    lines = [RECALLED_OPEN, *(_item(entry, _attributes(entry), entry.content) for entry in others)]
    lines += [CODE_HEADING, *map(_code_item, code)] if code else []
    lines += [PAST_HEADING, *map(_past_item, past)] if past else []
    return "\n".join([*lines, RECALLED_CLOSE])


def core_block(blocks: Iterable[MemoryEntry]) -> str:
    """Return the text of these core blocks, with their names as attributes, between the markers of core memory."""
    return "\n".join([CORE_OPEN, *(_item(block, {"name": block.title}, block.content) for block in blocks), CORE_CLOSE])


def instructions_block(entries: Iterable[MemoryEntry]) -> str:
    """Return the text of these standing instructions of the user, between their markers."""
    return "\n".join([INSTRUCTIONS_OPEN, *(_item(entry, {}, entry.content) for entry in entries), INSTRUCTIONS_CLOSE])


def memory_text(
    core: Sequence[MemoryEntry], instructions: Sequence[MemoryEntry], recalled: Sequence[MemoryEntry]
) -> str:
    """Return the text of the core blocks, of the instructions and of the recalled entries, or "" if there are none."""
    parts = [core_block(core)] if core else []
    parts += [instructions_block(instructions)] if instructions else []
    parts += [recalled_block(recalled)] if recalled else []
    return "\n".join(parts)


def _is_code(entry: MemoryEntry) -> bool:
    return bool(entry.source and lines_of(entry.source.label))


def _code_item(entry: MemoryEntry) -> str:
    assert entry.source is not None  # see `_is_code`
    place = place_name(entry.source.name, entry.source.page, entry.source.label)
    return _item(entry, {"kind": entry.kind}, f"{' '.join(place.split())}\n{entry.content}")


def _past_item(entry: MemoryEntry) -> str:
    """Return the line of an entry about a past event, with the type in front: "[decision] We use SQLite."."""
    given = entry.metadata.get("event_type")
    event_type = " ".join(str(given if isinstance(given, str) and given.strip() else entry.kind).split())[:_MAX_TYPE]
    return _item(entry, _attributes(entry), f"[{event_type}] {entry.content}")


def _item(entry: MemoryEntry, attributes: dict[str, str], content: str) -> str:
    values = {"id": entry.id, **attributes}
    written = "".join(f' {name}="{escape_line(v[:_MAX_ATTRIBUTE])}"' for name, v in values.items() if v)
    return f"<memory{written}>{escape_text(content)}</memory>"


def _attributes(entry: MemoryEntry) -> dict[str, str]:
    source = entry.source
    return {
        "kind": entry.kind,
        "date": entry.occurred_at.date().isoformat() if entry.occurred_at else "",
        "speaker": entry.speaker or entry.role,
        "title": "" if source else entry.title,
        "document": source.name if source else "",
        "page": (source.label or str(source.page or "")) if source else "",
    }
