"""The guard around each provider (an embedder, a language model or a reranker). The guard loads the provider at the
first use, pauses the calls after a failure, counts the calls, and converts unexpected errors to one error class."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from agentformer.errors import AgentFormerError, InvalidInput, MissingExtra
from agentformer.http.redaction import address_in

CALLS = "agentformer.providers"  # the logger of calls that failed
log = logging.getLogger(CALLS)

T = TypeVar("T")


class Breaker:
    """A circuit breaker: after a failed call, no further call is allowed for `seconds` seconds (Nygard 2007, "Release
    It!"). Then one call is allowed as a trial. If it fails, the next wait is twice as long, up to `longest` seconds. If
    it succeeds, all calls are allowed again. Calls that run and fail at the same time count as one failure.
    Thread-safe."""

    def __init__(self, seconds: float, *, longest: float = 300.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_wait = seconds
        self._longest = max(seconds, longest)
        self._clock = clock
        self._lock = threading.Lock()
        self._wait = 0.0
        self._until = 0.0
        self._reason = ""
        self._half_open = False

    def blocked(self) -> str:
        """Return "" if the caller may make a call now; otherwise return the reason why not. After the wait, only the
        first caller gets "", and its call is the trial. All other callers are refused until the trial has ended, but at
        most for one more wait."""
        with self._lock:
            if not self._reason:
                return ""
            now = self._clock()
            if now >= self._until:
                self._until, self._half_open = now + self._wait, True
                return ""
            return f"{self._reason}; next attempt in {max(1, round(self._until - now))} s"

    def succeeded(self) -> None:
        """Record a call that succeeded. All calls are allowed again."""
        with self._lock:
            self._wait, self._reason, self._half_open = 0.0, "", False

    def failed(self, reason: str) -> None:
        """Record a call that failed. The next calls are refused for some time, which is doubled if the failed call was
        a trial. `reason` is the message for the refused calls."""
        with self._lock:
            if self._reason and not self._half_open:
                return
            self._wait = min(self._wait * 2, self._longest) if self._half_open else self._first_wait
            self._until = self._clock() + self._wait
            self._reason, self._half_open = reason, False

    def reset(self) -> None:
        """Allow the next call now, without waiting."""
        with self._lock:
            self._until = 0.0


class Usage:
    """Counts the calls, errors, tokens and seconds of a provider since the process started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._errors: Counter[str] = Counter()
        self._last_error = ""
        self._tokens_in = 0
        self._tokens_out = 0
        self._seconds = 0.0
        self._slowest = 0.0

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Count one call of the provider `name`, and measure its time. An exception of the call is counted too, and
        raised again."""
        started = time.perf_counter()
        try:
            yield
        except Exception as error:
            self.failed(name, error)
            raise
        finally:
            seconds = time.perf_counter() - started
            with self._lock:
                self._calls += 1
                self._seconds += seconds
                self._slowest = max(self._slowest, seconds)

    def failed(self, name: str, error: Exception) -> None:
        """Count an error under the name of its class, and log this name, and the address of a server that cannot be
        used. The message of an error may quote a text."""
        log.warning(
            "a call of %s failed: %s", name, " at ".join(filter(None, (type(error).__name__, address_in(error))))
        )
        with self._lock:
            self._errors[type(error).__name__] += 1
            self._last_error = str(error)

    def tokens(self, read: int, written: int = 0) -> None:
        """Add tokens that the provider has reported: `read` tokens of the input and `written` tokens of the output."""
        with self._lock:
            self._tokens_in += read
            self._tokens_out += written

    def snapshot(self) -> dict[str, Any]:
        """Return all counts as a dictionary of JSON values. The mean time and the longest time of a call are in
        milliseconds; failed calls are included."""
        with self._lock:
            mean = self._seconds / self._calls if self._calls else 0.0
            return {
                "calls": self._calls,
                "errors": dict(self._errors),
                "last_error": self._last_error,
                "tokens_in": self._tokens_in,
                "tokens_out": self._tokens_out,
                "seconds": round(self._seconds, 3),
                "mean_ms": round(mean * 1000, 1),
                "slowest_ms": round(self._slowest * 1000, 1),
            }


class Guarded(Generic[T]):
    """The base class of `GuardedEmbedder`, `GuardedModel` and `GuardedReranker`. The function `load` creates the
    provider at the first use. After a failed call, the next calls raise the exception class `unavailable` and do not
    reach the provider, until the breaker allows a call again. Errors of the classes in `expected` are raised unchanged.
    All other errors, such as those that a plugin defines, are converted to `unavailable`."""

    unavailable: type[AgentFormerError] = AgentFormerError  # the class that is raised while the provider cannot be used
    expected: tuple[type[AgentFormerError], ...] = (AgentFormerError,)  # classes of errors that are raised unchanged

    def __init__(self, load: Callable[[], T], breaker: Breaker, usage: Usage | None = None) -> None:
        self._load = load
        self._breaker = breaker
        self._lock = threading.Lock()
        self._loaded: T | None = None
        self.usage = usage or Usage()

    @property
    def name(self) -> str:
        """The name of the provider in error messages."""
        raise NotImplementedError

    def retry_now(self) -> None:
        """Allow the next call now, without waiting for the end of the pause after a failure."""
        self._breaker.reset()

    def provider(self) -> T:
        """Return the provider, which is loaded at the first use. A provider that is already loaded is returned even if
        its server is down. Raise `unavailable` if loading fails."""
        with self._lock:
            if self._loaded is None:
                self._check_breaker()
                try:
                    with self._translated():
                        self._loaded = self._load_checked()
                except self.unavailable as error:
                    self._breaker.failed(str(error))
                    self.usage.failed(self.name, error)
                    raise
                self._breaker.succeeded()
            return self._loaded

    @contextmanager
    def call(self) -> Iterator[T]:
        """Yield the provider for one call in a `with` block, and count the call. Raise `unavailable` if calls are
        refused now. An exception whose class is not in `expected` is converted to `unavailable`. After the error
        `unavailable`, the next calls are refused for some time. After any other error, for example if a text is too
        long, the next calls are allowed."""
        provider = self.provider()
        self._check_breaker()
        try:
            with self.usage.call(self.name), self._translated():
                yield provider
        except self.unavailable as error:
            self._failed(provider, error)
            raise
        except InvalidInput:  # a mistake of the caller is not a failure of the provider
            raise
        except (AgentFormerError, GeneratorExit):
            self._breaker.succeeded()
            raise
        self._breaker.succeeded()

    def _check_loaded(self, provider: T) -> None:
        """Raise `unavailable` if the loaded provider cannot be used here. A subclass can override this method."""

    def _failed(self, provider: T, error: AgentFormerError) -> None:
        """Record a failed call: the next calls are refused for some time. A subclass can override this method."""
        self._breaker.failed(str(error))

    def _check_breaker(self) -> None:
        if reason := self._breaker.blocked():
            raise self.unavailable(reason)

    def _load_checked(self) -> T:
        try:
            provider = self._load()
        except MissingExtra as missing:
            raise self.unavailable(str(missing)) from missing
        self._check_loaded(provider)
        return provider

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise an error of the `with` block as `unavailable`, unless its class is in `expected`."""
        try:
            yield
        except self.expected:
            raise
        except AgentFormerError as error:
            raise self.unavailable(str(error)) from error
        except Exception as error:  # a plugin can raise anything
            reason = " ".join(str(error).split())[:200]
            raise self.unavailable(f"{self.name} failed ({type(error).__name__}: {reason})") from error
