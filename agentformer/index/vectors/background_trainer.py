"""A thread that trains an index while nothing waits for it, and one process at a time."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from agentformer.index.vectors import Interrupted

log = logging.getLogger("agentformer")

LOCK_FILE = "vectors.lock"
_BUSY_SECONDS = 60.0  # until somebody who found another process training looks again
_FAILED_SECONDS = 600.0  # until a training that failed is tried again, then twice as long
_ENDING_SECONDS = 10.0  # a thread looks at whether it is to end between slices of far less

Stopped = Callable[[], bool]


class Growth:
    """Does one piece of work at a time, in a thread that lives only as long as there is some. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._lock_file = folder / LOCK_FILE
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before = 0.0
        self._wait = _FAILED_SECONDS
        self.problem = ""  # what the last training failed of

    @property
    def at_work(self) -> bool:
        return self._thread is not None

    def begin(self, work: Callable[[Stopped], None]) -> None:
        """Do `work` in the background, unless some is being done, or was tried a short time ago."""
        if self._thread is not None or time.monotonic() < self._not_before:
            return
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, args=[work], name="agentformer-index", daemon=True)
                atexit.register(self.close)  # a daemon thread must not compute while the interpreter goes
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system has no thread to give; the search that asked goes on
                    self._thread = None
                    self._failed(error)

    def wait(self) -> None:
        """Until nothing is being done."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """End the thread, between two slices of its work. Idempotent."""
        self._stopped.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_ENDING_SECONDS)

    def alone(self, seconds: float = 0.0) -> FileLock:
        """Held by who trains or writes a snapshot; raises `Timeout` where another one is at it for so long."""
        return FileLock(self._lock_file, timeout=seconds)

    def _run(self, work: Callable[[Stopped], None]) -> None:
        try:
            with self.alone():
                work(self._stopped.is_set)
            self.problem, self._wait = "", _FAILED_SECONDS
        except Interrupted:
            pass
        except Timeout:
            self._not_before = time.monotonic() + _BUSY_SECONDS
        except Exception as error:  # noqa: BLE001 - the index goes on as it is, whatever went wrong
            self._failed(error)
        finally:
            self._thread = None
            atexit.unregister(self.close)

    def _failed(self, error: Exception) -> None:
        if self._stopped.is_set():
            return
        if not self.problem:
            log.warning("training the vector index failed, searches go on as before: %s", _told(error))
        self.problem = _told(error)
        self._not_before = time.monotonic() + self._wait
        self._wait *= 2


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
