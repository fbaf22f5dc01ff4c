"""A language model that leaves a dead server alone for a while, and counts what it is asked."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from agentformer.errors import InvalidReply, LanguageModelUnavailable, PromptTooLong
from agentformer.http.breaker import Breaker
from agentformer.http.usage import Usage
from agentformer.types import ChatMessage, LanguageModel, Reply, Tool


@runtime_checkable
class Choosing(Protocol):
    """A model that has several servers to choose from."""

    @property
    def has_another(self) -> bool:
        """Whether, after a call failed, another server answers."""
        ...


class GuardedModel:
    """`inner`, asked only while its breaker lets calls through. A refusal by the breaker is no call and is not
    counted. Thread-safe if `inner` is."""

    def __init__(self, inner: LanguageModel, *, breaker: Breaker, usage: Usage) -> None:
        self._inner = inner
        self._breaker = breaker
        self._usage = usage

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """As `LanguageModel.complete`."""
        with self._watched():
            reply = self._inner.complete(
                messages, tools=tools, schema=schema, temperature=temperature, max_tokens=max_tokens
            )
            self._usage.tokens(reply.tokens_in, reply.tokens_out)
            return reply

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """As `LanguageModel.stream`; one call from the first piece to the last. Who stops listening makes no error."""
        with self._watched():
            reply = yield from self._inner.stream(messages, temperature=temperature, max_tokens=max_tokens)
            self._usage.tokens(reply.tokens_in, reply.tokens_out)
            return reply

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Only where no server answers the breaker opens; one that answers nonsense is there."""
        if reason := self._breaker.blocked():
            raise LanguageModelUnavailable(reason)
        with self._usage.call():
            try:
                yield
            except LanguageModelUnavailable as error:
                if isinstance(self._inner, Choosing) and self._inner.has_another:
                    self._breaker.succeeded()
                else:
                    self._breaker.failed(str(error))
                raise
            except (PromptTooLong, InvalidReply, GeneratorExit):
                self._breaker.succeeded()
                raise
        self._breaker.succeeded()
