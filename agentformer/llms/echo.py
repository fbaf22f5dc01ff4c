"""A model that repeats the last user message: for tests, and as the shipped example of a language model."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentformer.errors import InvalidReply
from agentformer.llms.request_checks import check_asked
from agentformer.llms.structured import Mismatch, Schema
from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply, Tool


class EchoModel:
    """Answers with what it was asked, cut to `max_tokens` words. It calls no tools; JSON it repeats like any text."""

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> EchoModel:
        return cls()

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """Raises `InvalidReply` where a schema is given and the message is no JSON that is valid under it."""
        check_asked(messages, temperature=temperature, max_tokens=max_tokens, tools=tools)
        asked = next((m.content for m in reversed(messages) if m.role == "user"), "")
        words = asked.split(" ")
        kept = words[:max_tokens]
        cut = len(kept) < len(words)
        reply = Reply(" ".join(kept), "echo", len(words), len(kept), "length" if cut else "stop")
        if schema is None:
            return reply
        try:
            text, data = Schema(schema).read(reply.text)
        except Mismatch as mismatch:
            raise InvalidReply(f"echo can only repeat, and the message is not valid: {mismatch}") from None
        return replace(reply, text=text, data=data)

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        reply = self.complete(messages, temperature=temperature, max_tokens=max_tokens)
        for i, word in enumerate(reply.text.split(" ")):
            if piece := f" {word}" if i else word:
                yield piece
        return reply
