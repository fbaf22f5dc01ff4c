"""When a session has had enough messages to be cleaned, without counting them in the store each time."""

from __future__ import annotations

import threading
from collections.abc import Callable

_SESSIONS = 4096  # counts held; of more, the one longest without a message is counted in the store again

Session = tuple[str, str]  # namespace, session id


class MessageCounts:
    """How many messages each session has, as far as this process knows. Thread-safe.

    The store is asked when a session is new here, and whenever the own count reaches a multiple of `every`: so what
    other processes add counts from then on, and what was removed delays a cleaning by less than `every` messages.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._known: dict[Session, int] = {}
        self._lock = threading.Lock()

    def reached(self, session: Session, stored: Callable[[], int]) -> bool:
        """Has the message just stored made it a multiple of `every`? `stored` counts the session's messages."""
        with self._lock:
            known = self._known.pop(session, None)
            if known is not None and (known + 1) % self._every:
                self._known[session] = known + 1  # at the end: the first is the one longest without a message
                return False
        count = stored()  # what it raises leaves the session unknown, and so asked for again
        with self._lock:
            self._known[session] = count
            if len(self._known) > _SESSIONS:
                del self._known[next(iter(self._known))]
        return count % self._every == 0 if known is None else count > known
