"""How a process that serves tells the one that watches over it why it could not begin."""

from __future__ import annotations

import contextlib
import json
import os

from agentformer import errors
from agentformer.errors import AgentFormerError

_MOST = 4096  # bytes: what a pipe takes in one piece, so that several processes may tell at once


class Failure:
    """A pipe for one error. Made before processes are forked; `tell` is for the new ones, `told` for the old."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def tell(self, error: AgentFormerError) -> None:
        """Only the first that is told counts."""
        about = {"kind": type(error).__name__, "text": str(error)[:1000], "field": getattr(error, "field", "")}
        with contextlib.suppress(OSError):
            os.write(self._write, json.dumps(about).encode()[: _MOST - 1] + b"\n")

    def told(self) -> AgentFormerError | None:
        """The error as it was told, of the same class and with the same words."""
        try:
            about = json.loads(os.read(self._read, _MOST).partition(b"\n")[0])
        except (OSError, ValueError):
            return None
        kind = getattr(errors, about["kind"], AgentFormerError)
        error: AgentFormerError = kind.__new__(kind, about["text"])
        vars(error)["field"] = about["field"]
        return error

    def close(self) -> None:
        for end in (self._read, self._write):
            os.close(end)
