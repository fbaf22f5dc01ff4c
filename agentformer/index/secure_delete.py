"""Sees to it that no file beside the records keeps what was removed from them.

A removal is committed with a note of what is due. It is done at once, and where that was interrupted or failed, by
whoever opens the store next, removes something, or goes on using it. The removal itself is never turned into an error.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections.abc import Callable

from agentformer.errors import AgentFormerError
from agentformer.records import secure_delete as erasure
from agentformer.records.database import Database

log = logging.getLogger("agentformer")

_AGAIN_SECONDS = 60.0  # until what could not be done is tried again


class SecureDelete:
    """Thread-safe; done twice, by threads or by processes, it is done as well."""

    def __init__(self, database: Database, discard: Callable[[], None]) -> None:
        """`discard` deletes what the indexes keep on disk; raises `OSError` or `AgentFormerError` if it cannot."""
        self._database = database
        self._discard = discard
        self._not_before = math.inf  # by the monotonic clock; infinite while this process knows of nothing due

    def note(self, connection: sqlite3.Connection) -> None:
        """For the transaction of a removal."""
        erasure.note(connection)

    def settle(self) -> None:
        """Do what is due."""
        try:
            with self._database.reading() as connection:
                token = erasure.noted(connection)
            if token:
                self._discard()
                with self._database.writing() as connection:
                    erasure.done(connection, token)
            self._not_before = math.inf
        except (OSError, ValueError, AgentFormerError) as error:
            self._not_before = time.monotonic() + _AGAIN_SECONDS
            log.warning(
                "what was removed is out of the records, but not yet out of all index files, which is tried again: %s",
                error,
            )

    def settle_late(self) -> None:
        """Do what is due and could not be done before, once some time has passed."""
        if time.monotonic() >= self._not_before:
            self.settle()

    def finish(self) -> None:
        """Try what could not be done a last time."""
        if self._not_before < math.inf:
            self.settle()

    def clear_log(self) -> None:
        """Empty the write-ahead log; where that fails, a later removal or the last one to close the store does it."""
        try:
            self._database.clear_log()
        except AgentFormerError as error:
            log.warning("what was removed stays readable in the write-ahead log until it is emptied: %s", error)
