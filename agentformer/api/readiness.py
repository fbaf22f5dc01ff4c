"""Whether the parts of a memory can work now, found out without loading a model and without waiting for long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from agentformer.errors import EmbedderUnavailable
from agentformer.factory import AgentFormer
from agentformer.types import Query, Scope

log = logging.getLogger("agentformer")

_OK = "ok"
_BUSY = "busy"  # such as an index that follows an upload; what asks it now is answered after that
_PATIENCE = 0.4  # seconds that a part may take to answer: two of them do, and monitors give up after a second
_ABSENT = "-"  # the id of no entry
_FAILURE = EmbedderUnavailable.__name__  # a text that is too long is no failure of the embedder
_UNREADABLE = "cannot be read; the server's log says why"
_AWAY = "does not answer; memories are kept, and found by their words"
_UNUSED = "not used yet; its first use loads it"


def is_usable(state: str) -> bool:
    """Whether a store or an index in this state serves requests, if only after a while."""
    return state in (_OK, _BUSY)


class Readiness:
    """Looks at a memory's parts. Thread-safe; a part that hangs holds one thread, however often it is asked for."""

    def __init__(self, af: AgentFormer) -> None:
        self._store = _Look("store", lambda: af.backend.get([_ABSENT]))
        self._index = _Look("index", lambda: _searched(af))
        self._embedder = _Embedder(af.usage)

    def parts(self) -> dict[str, str]:
        return {"store": self._store.state(), "index": self._index.state(), "embedder": self._embedder.state()}


class _Look:
    """A look at a part that may take its time: one at once, in a thread of its own."""

    def __init__(self, name: str, look: Callable[[], object]) -> None:
        self._name = name
        self._look = look
        self._lock = threading.Lock()
        self._under_way: tuple[threading.Event, list[str]] | None = None

    def state(self) -> str:
        """What a look that began after this was called finds, or one that was under way already."""
        with self._lock:
            if self._under_way is None or self._under_way[0].is_set():
                self._under_way = threading.Event(), []
                threading.Thread(target=self._run, args=self._under_way, daemon=True).start()
            done, found = self._under_way
        return found[0] if done.wait(_PATIENCE) else _BUSY

    def _run(self, done: threading.Event, found: list[str]) -> None:
        try:
            self._look()
            found.append(_OK)
        except Exception as error:  # noqa: BLE001 - whatever it is, the part cannot be used
            log.error("the %s is not ready: %s", self._name, error)
            found.append(_UNREADABLE)
        finally:
            done.set()


def _searched(af: AgentFormer) -> None:
    """A search by words makes the index follow the records, and needs no model."""
    for namespace in af.backend.namespaces()[:1]:
        af.backend.search(Query("ready", Scope(namespace), limit=1, mode="lexical"))


class _Embedder:
    """How the embedder fared since the last look. One that was left alone since is as it was."""

    def __init__(self, usage: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._usage = usage
        self._lock = threading.Lock()
        self._seen = (0, 0)
        self._state = _UNUSED

    def state(self) -> str:
        used = [each for name, each in self._usage().items() if name.startswith("embedder ")]
        seen = sum(each["calls"] for each in used), sum(each["errors"].get(_FAILURE, 0) for each in used)
        with self._lock:
            calls, errors = (now - before for now, before in zip(seen, self._seen, strict=True))
            self._seen = seen
            if errors:
                self._state = _AWAY
            elif calls:
                self._state = _OK
            return self._state
