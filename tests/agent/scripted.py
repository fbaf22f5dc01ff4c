"""A language model that replies what a test tells it to, and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from agentformer.types import ChatMessage, Reply, Tool, ToolCall

Line = Reply | Exception | Callable[[Sequence[ChatMessage]], Reply]


class Scripted:
    """Gives its lines one after the other, and from then on the last one again. An error is raised."""

    def __init__(self, *lines: Line) -> None:
        self.lines = lines
        self.asked: list[Sequence[ChatMessage]] = []
        self.tools: list[Sequence[Tool]] = []

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        self.asked.append(messages)
        self.tools.append(tools)
        line = self.lines[min(len(self.asked), len(self.lines)) - 1]
        if isinstance(line, Exception):
            raise line
        return line(messages) if callable(line) else line

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        raise NotImplementedError("an agent does not stream")
        yield ""


def says(text: str, **more: Any) -> Reply:
    return Reply(text, **more)


def calls(*made: tuple[str, Any], ids: Sequence[str] | None = None, **more: Any) -> Reply:
    """A reply that calls tools: name and arguments of each."""
    names = ids or [f"id{number}" for number in range(len(made))]
    return Reply("", tool_calls=tuple(ToolCall(own, *one) for own, one in zip(names, made, strict=True)), **more)


def results(messages: Sequence[ChatMessage]) -> list[str]:
    """What tools gave, without the frame."""
    return [message.content.split("\n", 1)[1].rpartition("\n")[0] for message in messages if message.role == "tool"]
