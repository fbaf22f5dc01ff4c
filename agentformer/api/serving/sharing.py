"""The connections and the memory of modules that the worker processes of a server share.

All workers listen at the same socket, and the first one that accepts a connection keeps it. Without a rule, one of two
workers often gets six of eight connections, and these clients wait three times as long as the other two.
"""

from __future__ import annotations

import gc
import importlib
import mmap
import time
from collections.abc import Collection
from contextlib import suppress

from agentformer.embedders.sbert.openvino import import_openvino
from agentformer.settings import Settings

_SLOTS = 256  # more workers than a server has; each one has a number in the shared memory
_UNUSED = -1  # the count of a slot without a worker
_DEFER_SECONDS = 0.05  # after this time, a busier worker accepts a connection that no other worker has accepted
_NEW_SECONDS = 0.1  # a connection that waits after so long a pause is another one
_INDEX_MODULES = ("agentformer.memory.backends.faiss.indexes", "faiss", "tantivy")
_MODEL_MODULES = ("agentformer.embedders.sbert", "tokenizers")
_LOCAL_MODELS = ("auto", "minilm", "sbert")


def load_shared_modules(settings: Settings) -> None:
    """Import the modules that every worker needs, before the workers are forked. The workers then share the memory of
    these modules, about 35 MB. A module that cannot be imported is left out, and the workers report it."""
    local = settings.embedder.partition(":")[0] in _LOCAL_MODELS
    for name in (*_INDEX_MODULES, *(_MODEL_MODULES if local else ())):
        with suppress(Exception):  # a broken package can raise anything
            importlib.import_module(name)
    if local and settings.runtime != "torch":
        with suppress(Exception):
            import_openvino()
    gc.collect()
    gc.freeze()  # the collector of a worker would otherwise write to each object, and so copy its memory


class ConnectionCounts:
    """The numbers of active connections of all workers, in memory that they share. Create the object before the workers
    are forked. Each worker has a slot, whose number is an index into the shared memory."""

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, 4 * _SLOTS)).cast("i")
        self._counts[:] = memoryview(b"\xff" * (4 * _SLOTS)).cast("i")
        self._deferred_at = self._defer_until = 0.0

    def free_slot(self, used: Collection[int]) -> int:
        """Return the lowest slot that is not in `used`."""
        return next(slot for slot in range(_SLOTS) if slot not in used)

    def set(self, slot: int, count: int) -> None:
        """Store the number of active connections of the worker in this slot."""
        self._counts[slot] = count

    def leave(self, slot: int) -> None:
        """Record that the worker in this slot accepts no more connections."""
        self._counts[slot] = _UNUSED

    def should_defer(self, slot: int) -> bool:
        """Return whether the worker in this slot should leave a new connection to another worker, because that worker
        has fewer active connections. Return False if no other worker has accepted the connection for 50 ms, because the
        other worker may be blocked."""
        counts = self._counts
        own = counts[slot]
        if not any(_UNUSED < count < own for count in counts):
            return False
        now = time.monotonic()
        if now - self._deferred_at > _NEW_SECONDS:
            self._defer_until = now + _DEFER_SECONDS
        self._deferred_at = now
        return now < self._defer_until
