"""A replacement for a language model: it repeats the last message of the user. Use it for tests and as an example of a
language model."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentformer.errors import InvalidReply
from agentformer.llms.chat_protocol import check_request
from agentformer.llms.structured import Mismatch, Schema
from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply, Tool


class EchoModel:
    """Replies with the last message of the user, cut after `max_tokens` words. It calls no tools. It does not create
    JSON: if a JSON Schema is given, the message itself must be valid JSON."""

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
        """Return the reply, as `LanguageModel.complete` describes. Raise `InvalidReply` if `schema` is given and the
        message is not JSON that is valid under this schema."""
        check_request(messages, temperature=temperature, max_tokens=max_tokens, tools=tools)
        words = next((m.content for m in reversed(messages) if m.role == "user"), "").split(" ")
        text = " ".join(words[:max_tokens])
        written = min(len(words), max_tokens)
        reply = Reply(text, "echo", len(words), written, "length" if written < len(words) else "stop")
        if schema is None:
            return reply
        try:
            text, data = Schema(schema).read(reply.text)
        except Mismatch as mismatch:
            raise InvalidReply(
                "the model 'echo' repeats the message of the user, "
                f"but this message is not valid under the schema: {mismatch}"
            ) from None
        return replace(reply, text=text, data=data)

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """Yield the reply word by word, as `LanguageModel.stream` describes."""
        reply = self.complete(messages, temperature=temperature, max_tokens=max_tokens)
        for i, word in enumerate(reply.text.split(" ")):
            if piece := f" {word}" if i else word:
                yield piece
        return reply
