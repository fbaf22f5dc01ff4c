"""Language models with scripted output."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from agentformer.types import ChatMessage, Hit, MemoryEntry, Reply, Source, Tool

KEYS = "The office opens at nine. The caretaker keeps the keys in the blue cupboard. Dogs wait outside."
BOATS = "Boats are lifted in October. The crane costs 95 euros."
TEA = "Tea is served at four."


class Scripted:
    """Says its parts one after the other, or raises them; each call takes the next script, the last one again. `finish`
    is that of each reply, or a list with one for each call."""

    def __init__(self, *scripts: str | Exception | Sequence[str | Exception], finish: Any = "stop") -> None:
        self.scripts = [[script] if isinstance(script, (str, Exception)) else list(script) for script in scripts]
        self.finish = finish
        self.asked: list[Sequence[ChatMessage]] = []
        self.limits: list[int] = []
        self.closed = 0

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        said: list[str] = []
        for part in self._next(messages, max_tokens):
            if isinstance(part, Exception):
                raise part
            said.append(part)
        return self._reply(said)

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        said: list[str] = []
        try:
            for part in self._next(messages, max_tokens):
                if isinstance(part, Exception):
                    raise part
                said.append(part)
                yield part
        finally:
            self.closed += 1
        return self._reply(said)

    def _reply(self, said: Sequence[str]) -> Reply:
        finish = self.finish if isinstance(self.finish, str) else self.finish[len(self.asked) - 1]
        return Reply("".join(said), finish=finish)

    def _next(self, messages: Sequence[ChatMessage], max_tokens: int) -> list[str | Exception]:
        self.asked.append(messages)
        self.limits.append(max_tokens)
        return self.scripts[min(len(self.asked), len(self.scripts)) - 1]


def hit(content: str, page: int, score: float = 1.0, start: int = 0) -> Hit:
    source = Source("d1", "rules.pdf", page, str(page), start, start + len(content))
    return Hit(MemoryEntry(f"e{page}", content, kind="chunk", source=source), score)


HITS = [hit(KEYS, 1), hit(BOATS, 2, 0.9, start=40), hit(TEA, 3, 0.8)]
