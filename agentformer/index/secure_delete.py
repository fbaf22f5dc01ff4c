"""Secure deletion: no index file keeps what was removed from the records.

The transaction of a removal also notes that the index files are to be deleted. They are deleted at once. If that is
interrupted or fails, the next process that opens the store, removes something or goes on using it tries again. The
removal itself never fails for this reason.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections.abc import Callable

from agentformer.errors import AgentFormerError
from agentformer.records import meta as notes
from agentformer.records.database import Database

log = logging.getLogger("agentformer")

_RETRY_SECONDS = 60.0


class SecureDelete:
    """Deletes index files after removals. Thread-safe; doing it twice does no harm."""

    def __init__(self, database: Database, discard: Callable[[], None]) -> None:
        """`discard` deletes the index files. It raises `OSError` or `AgentFormerError` if it cannot."""
        self._database = database
        self._discard = discard
        self._retry_at = math.inf  # by the monotonic clock; infinite while no deletion has failed

    def note(self, connection: sqlite3.Connection) -> None:
        """Note in the transaction of a removal that index files are to be deleted."""
        notes.request_secure_delete(connection)

    def run(self) -> None:
        """Delete the index files if a removal asks for it. Failures are logged and tried again later."""
        try:
            with self._database.reading() as connection:
                token = notes.secure_delete_request(connection)
            if token:
                self._discard()
                with self._database.writing() as connection:
                    notes.finish_secure_delete(connection, token)
            self._retry_at = math.inf
        except (OSError, ValueError, AgentFormerError) as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            log.warning(
                "Removed entries are deleted from the records but not yet from all index files; trying again later: %s",
                error,
            )

    def retry(self) -> None:
        """Try a failed deletion again once some time has passed."""
        if time.monotonic() >= self._retry_at:
            self.run()

    def close(self) -> None:
        """Try a failed deletion one last time."""
        if self._retry_at < math.inf:
            self.run()

    def truncate_wal(self) -> None:
        """Empty the write-ahead log. If that fails, a later removal or the last process to close the store does it."""
        try:
            self._database.clear_log()
        except AgentFormerError as error:
            log.warning("Removed entries stay readable in the write-ahead log until it is emptied: %s", error)
