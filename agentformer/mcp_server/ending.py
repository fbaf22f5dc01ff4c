"""The last resort of a server that was told to end: a call that does not return must not keep the process."""

from __future__ import annotations

import logging
import os
import threading

log = logging.getLogger("agentformer")

_UNFINISHED = 1  # the exit code: done in part


def watchdog(seconds: float) -> threading.Timer:
    """A timer, not started yet, that ends the process. Nothing that is stored is harmed by it."""

    def give_up() -> None:
        log.error("a call was still at work after %g seconds; the server ends without it", seconds)
        os._exit(_UNFINISHED)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    return timer
