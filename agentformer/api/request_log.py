"""One line for each request: enough to follow it, and nothing of what it carried."""

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

_BEGUN = "agentformer.begun"
_LONGEST = 300  # characters of a path that a line shows


@dataclass(slots=True)
class Begun:
    """The request that is being answered. `key_id` is "" until it is known whose it is."""

    request_id: str = field(default_factory=new_id)
    key_id: str = ""
    started: float = field(default_factory=time.monotonic)


def begun(request_id: str = "") -> Begun:
    """The current request, which begins with the first call and then has this id, or a new one."""
    known = request.environ.get(_BEGUN)
    if not isinstance(known, Begun):
        known = request.environ[_BEGUN] = Begun(request_id) if request_id else Begun()
    return known


def log_request(response: Response, log_format: str) -> None:
    """Log the current request: now, or for an answer that is made while it is sent, at its end."""
    if not log.isEnabledFor(logging.INFO):
        return
    seen, path = begun(), quote(request.path, safe="/:@!$&'()*+,;=~", errors="replace")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "method": quote(request.method, safe="")[:20],
        "path": path[:_LONGEST],
        "status": response.status_code,
    }

    def write(sent: int) -> None:
        ms = round((time.monotonic() - seen.started) * 1000, 1)
        log.info("%s", _told({**line, "ms": ms, "bytes": sent, **_names(seen)}, log_format))

    if response.is_streamed and not response.direct_passthrough and request.method != "HEAD":
        response.response = counted = _Counted(response.response)
        response.call_on_close(lambda: write(counted.bytes))
    else:
        write(0 if request.method == "HEAD" else response.content_length or 0)


def log_requests_to(stream: IO[str]) -> None:
    """Write the lines to `stream`, and nowhere else: what a server of ours does, and a host application need not."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def _names(seen: Begun) -> dict[str, str]:
    return {"request_id": seen.request_id, "key_id": seen.key_id}


def _told(line: dict[str, Any], log_format: str) -> str:
    if log_format == "json":
        return json.dumps(line)
    told = {**line, "ms": f"{line['ms']}ms", "bytes": f"{line['bytes']}B", "key_id": line["key_id"] or "-"}
    return " ".join(str(value) for value in told.values())


class _Counted:
    """An answer's pieces, and how many bytes they had."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        self.bytes = 0
        self._pieces = pieces

    def __iter__(self) -> Iterator[Any]:
        for piece in self._pieces:
            self.bytes += len(piece.encode()) if isinstance(piece, str) else len(piece)
            yield piece

    def close(self) -> None:
        """As the server does at the end, also of an answer that nobody read."""
        if callable(close := getattr(self._pieces, "close", None)):
            close()
