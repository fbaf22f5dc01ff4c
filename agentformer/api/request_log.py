"""The access log: one line for each request, without its content."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any
from urllib.parse import quote

from flask import Response, request

from agentformer.types import new_id

log = logging.getLogger("agentformer.requests")

_KEY = "agentformer.request_info"  # in the WSGI environment
_MAX_PATH = 300  # characters of a path in a line


@dataclass(slots=True)
class RequestInfo:
    """Data of the current request. `key_id` is "" until the request is authenticated."""

    request_id: str = field(default_factory=new_id)
    key_id: str = ""
    started: float = field(default_factory=time.monotonic)


def request_info(request_id: str = "") -> RequestInfo:
    """Return the data of the current request. The first call creates them, with this id or a new one."""
    info = request.environ.get(_KEY)
    if not isinstance(info, RequestInfo):
        info = request.environ[_KEY] = RequestInfo(request_id) if request_id else RequestInfo()
    return info


def log_request(response: Response, log_format: str) -> None:
    """Log the current request: now, or at the end of a streamed response."""
    if not log.isEnabledFor(logging.INFO):
        return
    info, path = request_info(), quote(request.path, safe="/:@!$&'()*+,;=~", errors="replace")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "method": quote(request.method, safe="")[:20],
        "path": path[:_MAX_PATH],
        "status": response.status_code,
    }

    def write(sent: int) -> None:
        ms = round((time.monotonic() - info.started) * 1000, 1)
        ids = {"request_id": info.request_id, "key_id": info.key_id}
        log.info("%s", _formatted({**line, "ms": ms, "bytes": sent, **ids}, log_format))

    if response.is_streamed and not response.direct_passthrough and request.method != "HEAD":
        response.response = pieces = _CountedPieces(response.response)
        response.call_on_close(lambda: write(pieces.bytes))
    else:
        write(0 if request.method == "HEAD" else response.content_length or 0)


def log_requests_to(stream: IO[str]) -> None:
    """Write the lines to `stream` only. For our own servers; a host application configures logging itself."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def _formatted(line: dict[str, Any], log_format: str) -> str:
    if log_format == "json":
        return json.dumps(line)
    values = {**line, "ms": f"{line['ms']}ms", "bytes": f"{line['bytes']}B", "key_id": line["key_id"] or "-"}
    return " ".join(str(value) for value in values.values())


class _CountedPieces:
    """The pieces of a response, with a count of their bytes."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        self.bytes = 0
        self._pieces = pieces

    def __iter__(self) -> Iterator[Any]:
        for piece in self._pieces:
            self.bytes += len(piece.encode()) if isinstance(piece, str) else len(piece)
            yield piece

    def close(self) -> None:
        """Close the pieces. The server calls this at the end, also for a response that nobody read."""
        if callable(close := getattr(self._pieces, "close", None)):
            close()
