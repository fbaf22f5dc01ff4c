"""Traces: spans of OpenTelemetry for the operations of a memory, in the terms of its semantic conventions.

`enable` switches them on for this process. Until then, a span is an object that does nothing, and the package
`opentelemetry-api` is not imported. A span has names, counts and sizes, and no text, unless `enable` allows texts. An
error is recorded by the name of its class, because its message may quote a text.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import json
from collections.abc import Callable, Generator, Mapping, Sized
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from agentformer._version import __version__
from agentformer.errors import MissingExtra
from agentformer.http.redaction import redact

T = TypeVar("T")
Kind = Literal["INTERNAL", "SERVER", "CLIENT"]
_MAX_TEXT = 4_000  # characters of a text in a span
_PROVIDERS = {"openai": "openai", "ollama": "ollama", "lmstudio": "lmstudio"}  # others are local models


class Span:
    """A span that records nothing, and the base class of those that record. Use it as a context manager."""

    recording = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        return None

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the span. Values that are None are left out."""

    def set_text(self, name: str, text: object) -> None:
        """Add an attribute with a text of a user, if texts are allowed. Keys of known forms are left out."""

    def end(self, error: type[BaseException] | None = None) -> None:
        """End a span that is not used as a context manager. `error` is the class of the error of its work."""


_OFF = Span()


class _Recording(Span):
    recording = True

    def __init__(self, tracing: _Tracing, name: str, attributes: Mapping[str, Any], kind: Kind, parent: Any) -> None:
        self._tracing = tracing
        kinds = tracing.api.SpanKind
        self._span = tracing.tracer.start_span(name, context=parent, kind=kinds[kind])
        self.set(attributes)

    def __enter__(self) -> Self:
        context = self._tracing.api.set_span_in_context(self._span)
        self._token = self._tracing.context.attach(context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._tracing.context.detach(self._token)
        self.end(kind)

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Set the attributes that are not None."""
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name, value)

    def set_text(self, name: str, text: object) -> None:
        """Set an attribute to a text, or to the JSON of another value, if texts may be recorded."""
        if self._tracing.texts:
            value = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=str)
            self._span.set_attribute(name, redact(value[:_MAX_TEXT], ()))

    def end(self, error: type[BaseException] | None = None) -> None:
        """End the span. `error` is the class of the error that ended the call, or None."""
        if error is not None and not issubclass(error, GeneratorExit):
            self._span.set_attribute("error.type", error.__qualname__)
            self._span.set_status(self._tracing.api.StatusCode.ERROR)
        self._span.end()


class _Tracing:
    """The parts of OpenTelemetry that spans need."""

    def __init__(self, *, texts: bool) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingExtra("otel", "traces", error) from error
        self.api: Any = trace
        self.context: Any = context
        self.w3c: Any = TraceContextTextMapPropagator()
        self.tracer = trace.get_tracer("agentformer", __version__)
        self.texts = texts


_active: _Tracing | None = None


def enable(*, texts: bool = False) -> None:
    """Switch traces on for this process. The spans go to the tracer provider that the program has set. With `texts`,
    they also have queries, messages and replies. Raises `MissingExtra` if `opentelemetry-api` is not installed."""
    global _active
    if _active is None or _active.texts != texts:
        _active = _Tracing(texts=texts)


def disable() -> None:
    """Switch traces off."""
    global _active
    _active = None


def span(name: str, attributes: Mapping[str, Any] | None = None, kind: Kind = "INTERNAL") -> Span:
    """Return a span for a `with` block, a child of the present one."""
    return _OFF if _active is None else _Recording(_active, name, attributes or {}, kind, None)


def server_span(name: str, header: Callable[[str], str | None], attributes: Mapping[str, Any]) -> Span:
    """Return the span of a request. Its parent is the span in the header `traceparent` (W3C Trace Context). `header`
    returns the value of a header."""
    if _active is None:
        return _OFF
    carrier = {key: value for key in ("traceparent", "tracestate") if (value := header(key))}
    parent = _active.w3c.extract(carrier) if carrier else None
    return _Recording(_active, name, attributes, "SERVER", parent)


def model_span(operation: str, provider: str, model: str, attributes: Mapping[str, Any]) -> Span:
    """Return the span of a call of a model, by the conventions for generative AI: `chat` or `embeddings`."""
    if _active is None:
        return _OFF
    common = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider or None),
        "gen_ai.request.model": model or None,
    }
    return _Recording(_active, f"{operation} {model}".strip(), {**common, **attributes}, "CLIENT", None)


def carrier() -> Callable[[Callable[[], T]], Callable[[], T]]:
    """Return a function that makes a task for another thread a part of the span that is present now."""
    if _active is None:
        return lambda task: task
    context = contextvars.copy_context()
    return lambda task: functools.partial(context.run, task)


def traced(part: T, name: str) -> T:
    """Give each public call of an object a span, such as `memory.search`, if traces are on. Return the object."""
    if _active is not None:
        for call in dir(type(part)):
            if not call.startswith("_") and inspect.isfunction(inspect.getattr_static(type(part), call)):
                setattr(part, call, _with_span(getattr(part, call), name, call))
    return part


def _with_span(method: Callable[..., Any], name: str, call: str) -> Callable[..., Any]:
    # Only the written return type tells a stream: a method that streams must be annotated with `Generator[...]`. With
    # another type, such as `Iterator`, its span would end before the first item.
    is_stream = str(inspect.unwrap(method).__annotations__.get("return", "")).startswith("Generator")

    @functools.wraps(method)
    def run(*arguments: Any, **options: Any) -> Any:
        namespace = options.get("namespace")
        attributes = {
            "db.system.name": "agentformer",
            "db.operation.name": call,
            "db.namespace": namespace if isinstance(namespace, str) else None,
        }
        if is_stream:
            return _streamed(functools.partial(method, *arguments, **options), f"{name}.{call}", attributes)
        with span(f"{name}.{call}", attributes) as current:
            result = method(*arguments, **options)
            if isinstance(result, Sized) and not isinstance(result, (str, bytes, Mapping)):
                current.set({"db.response.returned_rows": len(result)})
            return result

    return run


def _streamed(
    begin: Callable[[], Generator[T, None, Any]], name: str, attributes: Mapping[str, Any]
) -> Generator[T, None, Any]:
    """Yield the items of a stream. The span is the present one while the stream works, and not while its reader does:
    each piece is made in a context of its own."""
    context = contextvars.copy_context()
    current = context.run(lambda: span(name, attributes).__enter__())
    error: BaseException | None = None
    try:
        items = context.run(begin)
        while True:
            try:
                item = context.run(next, items)
            except StopIteration as end:
                return end.value
            yield item
    except BaseException as raised:
        error = raised
        context.run(items.close)
        raise
    finally:
        context.run(current.__exit__, type(error) if error else None, error, None)
