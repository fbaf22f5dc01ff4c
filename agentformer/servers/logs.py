"""The log of a server: one stream, one line for each record, as text or as JSON, for requests, warnings, calls of
providers, jobs, start and stop. A line has the time, the level, and the request and the key of the call that wrote it.
It never has a text, a query or a key."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import IO, Any

from agentformer.actor import ACTOR
from agentformer.settings import Settings

FIELDS = "fields"  # attribute of a record with values of its own, such as those of a request


def log_to(stream: IO[str], settings: Settings) -> None:
    """Write all records of this process to `stream`, in the format and from the level in the settings. Only the servers
    of this package call this function: a host application configures its logging itself."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(settings.log_format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("agentformer").setLevel(settings.log_level.upper())


class LineFormatter(logging.Formatter):
    """Formats a record as one line: JSON, or `TIME LEVEL MESSAGE`."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. A traceback is part of it: escaped in JSON, and on indented lines after it in text."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if not self._json:
            lines = [f"{moment} {record.levelname} {record.getMessage()}", *trace.splitlines()]
            return "\n    ".join(line.replace("\n", " ") for line in lines)
        actor = ACTOR.get()
        told: dict[str, Any] = getattr(record, FIELDS, None) or {
            "message": record.getMessage(),
            **{name: value for name, value in (("request_id", actor.request), ("key_id", actor.key)) if value},
        }
        line = {"time": moment, "level": record.levelname.lower(), "logger": record.name, **told}
        return json.dumps({**line, "traceback": trace} if trace else line)
