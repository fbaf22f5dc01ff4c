"""What could not be embedded when it was stored is tried again in the background, with growing waits."""

from __future__ import annotations

import logging
import random
import threading
import weakref

from agentformer.types import MemoryBackend

log = logging.getLogger("agentformer")

_LONGEST = 300.0  # seconds between two tries; an embedder that was away for hours is noticed within minutes
_JITTER = 0.2  # so that many processes do not ask one server at the same moment


class EmbedRetry:
    """A thread that embeds a backend's queue. While nothing waits, it only looks, every `seconds`; after a try that
    left something it waits twice as long as before. `seconds` of 0 start no thread. One that nobody holds any more,
    as when its memory is dropped without `close()`, ends its thread."""

    def __init__(self, backend: MemoryBackend, seconds: float) -> None:
        self._backend = backend
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._seconds > 0 and self._thread is None:
            given = (weakref.ref(self), self._stopped, self._seconds)
            self._thread = threading.Thread(target=_run, args=given, name="agentformer-embedding", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._stopped.set).atexit = False

    def close(self, seconds: float = 5.0) -> None:
        """End the thread; a batch that is being embedded is waited for at most so long. Idempotent."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _try(self) -> int:
        """How many entries still wait."""
        try:
            return self._backend.embed_pending(refused=False)
        except Exception as error:  # noqa: BLE001 - the thread goes on, whatever went wrong this time
            if not self._stopped.is_set():
                log.warning("embedding what waits failed: %s", error)
            return 1


def _run(owner: weakref.ref[EmbedRetry], stopped: threading.Event, seconds: float) -> None:
    """The thread, which holds its owner only while it tries."""
    wait = seconds
    while not stopped.wait(wait * (1 + random.uniform(-_JITTER, _JITTER))):  # noqa: S311
        wait = min(wait * 2, _LONGEST) if _tried(owner) else seconds


def _tried(owner: weakref.ref[EmbedRetry]) -> int:
    there = owner()
    return there._try() if there else 0
