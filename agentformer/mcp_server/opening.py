"""The memory behind a server, opened when it is first needed, so that a client's greeting is answered at once."""

from __future__ import annotations

import logging
import threading

from agentformer.errors import AgentFormerError, StoreError
from agentformer.factory import AgentFormer
from agentformer.settings import Settings

log = logging.getLogger("agentformer")


class Opening:
    """Thread-safe. What cannot be opened now is tried again with the next call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._memory: AgentFormer | None = None
        self._closed = False

    def memory(self) -> AgentFormer:
        """The opened memory. Raises what opening it raises, and `StoreError` once it was closed."""
        with self._lock:
            if self._closed:
                raise StoreError("the memory is closed: the server is ending")
            if self._memory is None:
                self._memory = AgentFormer(self._settings).ready()
            return self._memory

    def begin(self) -> None:
        """Open it in the background; nobody waits for it, and what is wrong is told to who needs it."""
        threading.Thread(target=self._try, name="opening", daemon=True).start()

    def close(self) -> None:
        """Close it, if it was opened. Idempotent."""
        with self._lock:
            self._closed = True
            if self._memory is not None:
                self._memory.close()

    def _try(self) -> None:
        try:
            self.memory()
        except AgentFormerError as error:
            log.error("the memory cannot be opened: %s", error)
