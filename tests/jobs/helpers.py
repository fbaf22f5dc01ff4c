"""Job queues over temporary folders, and an ingestor that records its files."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from agentformer.jobs.queue import Jobs
from agentformer.jobs.store import Job, Progress, Task
from agentformer.types import Stopped

BOUND = 120.0  # seconds that any test waits at most


class RecordingIngestor:
    """Records each file. `action` runs in the middle of each file."""

    def __init__(self) -> None:
        self.ingested: list[tuple[str, bytes, str | None]] = []
        self.ahead: list[tuple[int, bool]] = []  # the number of each file, and whether it was prepared ahead
        self.action: Callable[[str], Any] = lambda name: None

    def prepare(self, job: Job, number: int, file: BinaryIO, password: str | None, stopped: Stopped | None) -> Any:
        self.ahead.append((number, stopped is not None))
        return file.read(), password

    def ingest(self, job: Job, name: str, prepared: Callable[[], Any], progress: Progress) -> Mapping[str, Any]:
        data, password = prepared()
        progress(1, 2)
        self.action(name)
        progress(2, 2)
        self.ingested.append((name, data, password))
        return {"name": name, "status": "ready" if data else "failed"}

    def failed(self, job: Job, name: str, reason: str) -> Mapping[str, Any]:
        return {"name": name, "status": "failed", "reason": reason}


def open_jobs(folder: Path, ingestor: RecordingIngestor, *, most: int = 32, days: float = 7.0) -> Jobs:
    (folder / "i").mkdir(exist_ok=True)
    return Jobs(folder / "i", folder / "u", ingestor, most=most, days=days)


def task(*names: str, namespace: str = "default") -> Task:
    return Task(namespace, names, {"site": "north"})


def files(*texts: bytes) -> list[BinaryIO]:
    return [io.BytesIO(text) for text in texts]


def until(jobs: Jobs, job_id: str, holds: Callable[[Job], bool] = lambda job: job.ended) -> Job:
    deadline = time.monotonic() + BOUND
    while not holds(job := jobs.get(job_id)):
        assert time.monotonic() < deadline, job
        time.sleep(0.01)
    return job


def remaining_folders(folder: Path) -> list[str]:
    """Return the job folders that remain after the worker had time to delete them."""
    spool = folder / "u" / ".jobs"
    deadline = time.monotonic() + BOUND
    while (left := [path.name for path in spool.iterdir() if path.is_dir()]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
