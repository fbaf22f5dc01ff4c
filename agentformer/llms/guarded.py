"""Language models. Each provider of models has its own module. The rest of the package calls a language model only
through the class `GuardedModel` of this module, which refuses calls for some time after a failed call."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from agentformer.errors import AgentFormerError, LanguageModelUnavailable
from agentformer.http import tracing
from agentformer.http.circuit_breaker import Breaker, Guarded, Usage
from agentformer.registry import known, lookup
from agentformer.settings import Settings
from agentformer.types import ChatMessage, LanguageModel, Reply, Tool


@runtime_checkable
class Failover(Protocol):
    """A language model that is available on several servers, so that another server can be used if one server fails."""

    @property
    def has_fallback(self) -> bool:
        """True if another server answers, and the next call after a failed call will use that server."""
        ...


class GuardedModel(Guarded[LanguageModel]):
    """A language model that is protected against repeated failures: after a failed call, calls are refused for some
    time, unless another server answers. So a broken server does not slow down every request. `usage` does not count
    refused calls. Thread-safe if the model `inner` is thread-safe."""

    unavailable = LanguageModelUnavailable

    def __init__(
        self, inner: LanguageModel, *, breaker: Breaker, usage: Usage, spec: tuple[str, str] = ("", "")
    ) -> None:
        """`spec` is the provider and the name of the model, for traces."""
        super().__init__(lambda: inner, breaker, usage)
        self._loaded = inner
        self._spec = spec

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
        """Return a complete reply, as `LanguageModel.complete` describes."""
        with self.call() as model, self._span(messages, temperature, max_tokens) as span:
            reply = model.complete(messages, tools=tools, schema=schema, temperature=temperature, max_tokens=max_tokens)
            self._note(reply, span)
        return reply

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """Yield the pieces of a reply, as `LanguageModel.stream` describes. The complete stream counts as one call. A
        caller may close the stream before its end; this is not counted as an error."""
        span, error = self._span(messages, temperature, max_tokens, stream=True), None
        try:  # not as a context manager: the span must not be the present one of the reader
            with self.call() as model:
                reply = yield from model.stream(messages, temperature=temperature, max_tokens=max_tokens)
                self._note(reply, span)
        except BaseException as raised:
            error = type(raised)
            raise
        finally:
            span.end(error)
        return reply

    def _span(
        self, messages: Sequence[ChatMessage], temperature: float, max_tokens: int, *, stream: bool = False
    ) -> tracing.Span:
        options = {"gen_ai.request.temperature": temperature, "gen_ai.request.max_tokens": max_tokens}
        counts = {"gen_ai.request.stream": stream, "agentformer.chat.messages": len(messages)}
        span = tracing.model_span("chat", *self._spec, {**options, **counts})
        if span.recording:
            parts = [{"role": each.role, "parts": [{"type": "text", "content": each.content}]} for each in messages]
            span.set_text("gen_ai.input.messages", parts)
        return span

    def _note(self, reply: Reply, span: tracing.Span) -> None:
        self.usage.tokens(reply.tokens_in, reply.tokens_out)
        if span.recording:
            tokens = {"gen_ai.usage.input_tokens": reply.tokens_in, "gen_ai.usage.output_tokens": reply.tokens_out}
            span.set(tokens)
            span.set_text("gen_ai.output.messages", [{"role": "assistant", "parts": [reply.text]}])

    def _failed(self, provider: LanguageModel, error: AgentFormerError) -> None:
        if isinstance(provider, Failover) and provider.has_fallback:
            self._breaker.succeeded()
        else:
            super()._failed(provider, error)


def build_model(settings: Settings, usage: Usage | None = None) -> LanguageModel | None:
    """Return the configured language model, or None if no model is configured. After failed calls, a circuit breaker
    refuses calls for some seconds. `usage` counts the calls."""
    if not settings.llm_model:
        return None
    provider, model = model_spec(settings)
    llm: LanguageModel = lookup("llms", provider)(model, settings)
    breaker = Breaker(settings.breaker_seconds)
    return GuardedModel(llm, breaker=breaker, usage=usage or Usage(), spec=(provider, model))


def model_spec(settings: Settings) -> tuple[str, str]:
    """Return the provider and the model name of the setting `llm_model`. If the setting does not begin with the name of
    a registered provider, return `openai` (any OpenAI-compatible server) and the whole setting as the model name."""
    provider, _, model = settings.llm_model.partition(":")
    return (provider, model) if known("llms", provider) else ("openai", settings.llm_model)
