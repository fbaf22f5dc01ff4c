"""A model that repeats the last user message: for tests, and as the shipped example of a language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply


class EchoModel:
    """Answers with what it was asked, cut to `max_tokens` words."""

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> EchoModel:
        return cls()

    def complete(self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512) -> Reply:
        asked = next((m.content for m in reversed(messages) if m.role == "user"), "")
        words = asked.split(" ")
        return Reply(" ".join(words[:max_tokens]), "echo", len(words), min(len(words), max_tokens))

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Iterator[str]:
        for i, word in enumerate(self.complete(messages, max_tokens=max_tokens).text.split(" ")):
            yield f" {word}" if i else word
