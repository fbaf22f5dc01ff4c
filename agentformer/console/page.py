"""The console: the page that a browser shows, and the checks of the stored data that the page starts.

The files of the page are in the folder `static`. The page is plain HTML, one style sheet and small ES modules, without
a build step. `page` returns the HTML, which contains the base path of the server, and `asset` returns any other file.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from agentformer.errors import AgentFormerError
from agentformer.tools.result_json import report_json
from agentformer.types import Check

log = logging.getLogger("agentformer")

_FAILED = "The check was interrupted by an error; see the log of the server."
_STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE = "index.html"
# No inline script or style, no other host, no frames. Images of pages are made from data that the page has fetched.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@functools.cache
def _files() -> dict[str, tuple[str, bytes]]:
    """Return the media type and the bytes of each file that the page loads, by name."""
    return {
        path.name: (_TYPES[path.suffix], path.read_bytes())
        for path in sorted(_STATIC.iterdir())
        if path.suffix in _TYPES
    }


def asset(name: str) -> tuple[str, bytes] | None:
    """Return the media type and the bytes of a file of the page. Return None if there is no such file."""
    return _files().get(name)


@functools.lru_cache(maxsize=16)
def page(root: str) -> bytes:
    """Return the HTML of the page. `root` is the base path of the server, such as "" or "/memory"."""
    text = (_STATIC / PAGE).read_text(encoding="utf-8")
    return text.replace("{root}", escape(root)).encode()


class CheckRuns:
    """Runs the checks of a memory in a thread, one run at a time, and keeps the last results. `verify` runs the checks
    and returns their results. Thread-safe."""

    def __init__(self, verify: Callable[[], Sequence[Check]]) -> None:
        self._verify = verify
        self._lock = threading.Lock()
        self._state = "never"
        self._started = self._finished = ""
        self._problem = ""
        self._results: Sequence[Check] | None = None

    def start(self) -> None:
        """Start a run, unless one is running."""
        with self._lock:
            if self._state == "running":
                return
            self._state, self._started = "running", _now()
        threading.Thread(target=self._run, name="agentformer-checks", daemon=True).start()

    def state(self) -> dict[str, Any]:
        """Return the state and the last results as JSON."""
        with self._lock:
            results = self._results
            return {
                "state": self._state,
                "started_at": self._started or None,
                "finished_at": self._finished or None,
                "well": None if results is None else all(check.found == check.mended for check in results),
                "problem": self._problem,
                "checks": [report_json(check) for check in results or ()],
            }

    def _run(self) -> None:
        results, problem = None, ""
        try:
            results = self._verify()
        except AgentFormerError as error:
            problem = str(error)
        except Exception:  # the page must not wait for ever
            log.exception("the check of the stored data failed")
            problem = _FAILED
        with self._lock:
            self._state, self._finished, self._problem = "failed" if problem else "done", _now(), problem
            self._results = self._results if results is None else results


def _now() -> str:
    return datetime.now(UTC).isoformat()
