"""Notifications of the server about changes of other nodes (`LISTEN`). If the server or a pooler sends none, a node
reads the tables again after some time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agentformer.errors import StoreError
from agentformer.memory.backends.postgres.server import open_connection, translated_errors

if TYPE_CHECKING:
    import psycopg

_CHANNEL = "agentformer"


class Listener:
    """Waits for changes of the tables of one store. Not thread-safe. Changes before the first `wait` are not noticed,
    so a caller reads the tables once after the first `wait`."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._connection: psycopg.Connection[Any] | None = None

    def wait(self, seconds: float, *tables: str) -> bool:
        """Return True as soon as one of the tables has new rows, and False after `seconds`. If the listener was already
        connected, a change before the call is noticed, too. If the server cannot be reached, return False after
        `seconds`."""
        deadline = time.monotonic() + seconds
        wanted = {f"{self._schema}/{table}" for table in tables}
        try:
            with translated_errors():
                connection = self._connected()
                while (left := deadline - time.monotonic()) > 0:
                    found = [message.payload for message in connection.notifies(timeout=left, stop_after=1)]
                    if wanted & {*found}:
                        return True
        except StoreError:
            self.close()
            time.sleep(max(0.0, deadline - time.monotonic()))
        return False

    def close(self) -> None:
        """Close the connection. The next `wait` opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = open_connection(self._url)
            self._connection.execute(f"LISTEN {_CHANNEL}".encode())
        return self._connection
