"""Language models, and the guard through which the rest of the package uses them."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from agentformer.errors import AgentFormerError, LanguageModelUnavailable
from agentformer.http.guarded import Breaker, Guarded, Usage
from agentformer.types import ChatMessage, LanguageModel, Reply, Tool


@runtime_checkable
class Failover(Protocol):
    """A model that several servers can serve."""

    @property
    def has_fallback(self) -> bool:
        """True if another server answers after a failed call."""
        ...


class GuardedModel(Guarded[LanguageModel]):
    """A language model behind a circuit breaker, which opens only if no server answers. Calls that the breaker refuses
    are not counted. Thread-safe if `inner` is thread-safe."""

    unavailable = LanguageModelUnavailable

    def __init__(self, inner: LanguageModel, *, breaker: Breaker, usage: Usage) -> None:
        super().__init__(lambda: inner, breaker, usage)
        self._loaded = inner

    @property
    def name(self) -> str:
        return "the language model"

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """See `LanguageModel.complete`."""
        with self.call() as model:
            reply = model.complete(messages, tools=tools, schema=schema, temperature=temperature, max_tokens=max_tokens)
            self.usage.tokens(reply.tokens_in, reply.tokens_out)
        return reply

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """See `LanguageModel.stream`. The stream counts as one call. Closing it early is not an error."""
        with self.call() as model:
            reply = yield from model.stream(messages, temperature=temperature, max_tokens=max_tokens)
            self.usage.tokens(reply.tokens_in, reply.tokens_out)
        return reply

    def _failed(self, provider: LanguageModel, error: AgentFormerError) -> None:
        if isinstance(provider, Failover) and provider.has_fallback:
            self._breaker.succeeded()
        else:
            super()._failed(provider, error)
