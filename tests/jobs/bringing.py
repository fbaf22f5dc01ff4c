"""What the tests of jobs share: jobs over folders of a test, and what is done with each file."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from agentformer.jobs.queue import Jobs, Progress
from agentformer.jobs.store import Job, Task

BOUND = 30.0  # seconds that anything here waits at most


class Bring:
    """Notes what it is given; `does` is done in the middle of each file."""

    def __init__(self) -> None:
        self.brought: list[tuple[str, bytes, str | None]] = []
        self.does: Callable[[str], Any] = lambda name: None

    def ingest(
        self, job: Job, name: str, file: BinaryIO, password: str | None, progress: Progress
    ) -> Mapping[str, Any]:
        data = file.read()
        progress(1, 2)
        self.does(name)
        progress(2, 2)
        self.brought.append((name, data, password))
        return {"name": name, "status": "ready" if data else "failed"}

    def failed(self, job: Job, name: str, reason: str) -> Mapping[str, Any]:
        return {"name": name, "status": "failed", "reason": reason}


def made(folder: Path, bring: Bring, *, most: int = 32, days: float = 7.0) -> Jobs:
    (folder / "i").mkdir(exist_ok=True)
    return Jobs(folder / "i", folder / "u", bring, most=most, days=days)


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


def on_disk(folder: Path) -> list[str]:
    """What is left of the spool, once whoever ended the job has cleared it away."""
    spool = folder / "u" / ".jobs"
    deadline = time.monotonic() + BOUND
    while (left := [path.name for path in spool.iterdir() if path.is_dir()]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
