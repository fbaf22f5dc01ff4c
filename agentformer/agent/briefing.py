"""What the model is shown before its first reply: our rules, the conversation, and memory as data of the request.

Memory holds what documents, tools and other people said, so it stands in the user's message before the request, between
its markers; the system says our rules alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentformer.agent.prompts import EARLIER, note
from agentformer.agent.turns import UsedMemory
from agentformer.memory.context.builder import Context
from agentformer.text.prompt_quoting import strip_template_tokens
from agentformer.types import ChatMessage, MemoryBackend, MemoryEntry

_EXCERPT = 200  # characters of a memory that a person is shown
_RECALLED = ("core", "episodic", "semantic")


@dataclass(frozen=True, slots=True)
class Briefing:
    """What follows our rules. `entries` are the memories that it holds."""

    messages: tuple[ChatMessage, ...]
    memories: tuple[UsedMemory, ...] = ()
    entries: tuple[MemoryEntry, ...] = ()
    warnings: tuple[str, ...] = ()


def briefing(task: str, context: Context | None, backend: MemoryBackend) -> Briefing:
    """The messages for a task. `context` ends with it; without one, the task is all that there is."""
    said = list(context.messages) if context else [ChatMessage("user", strip_template_tokens(task))]
    data = ""
    if context and context.has_memory:
        data = f"{said.pop(0).content}\n\n"
    said[-1] = replace(said[-1], content=data + said[-1].content)
    messages = tuple(alternating(said))
    if context is None:
        return Briefing(messages)
    report = context.report
    memories, entries = _used(report.included, backend)
    return Briefing(messages, memories, entries, report.warnings)


def alternating(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """The same, as every chat template takes it: the user begins, nobody speaks twice in a row, and what the
    conversation holds in the role of the system is a note."""
    found: list[ChatMessage] = []
    for message in messages:
        if message.role == "system":
            message = ChatMessage("user", note(message.content))
        if not found and message.role == "assistant":
            found.append(ChatMessage("user", EARLIER))
        if found and found[-1].role == message.role:
            message = replace(message, content=f"{found.pop().content}\n\n{message.content}")
        found.append(message)
    return found


def _used(
    included: Mapping[str, Sequence[str]], backend: MemoryBackend
) -> tuple[tuple[UsedMemory, ...], tuple[MemoryEntry, ...]]:
    share_of = {each: share for share in _RECALLED for each in included.get(share, ())}
    entries = tuple(backend.get(list(share_of)))
    used = (UsedMemory(entry.id, share_of[entry.id], entry.kind, excerpt(entry.content)) for entry in entries)
    return tuple(used), entries


def excerpt(text: str, most: int = _EXCERPT) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[:most]}…"
