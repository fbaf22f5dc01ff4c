"""A job queue and its ingestor for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentformer.jobs.queue import Jobs
from tests.jobs.helpers import RecordingIngestor, open_jobs


@pytest.fixture
def ingestor() -> RecordingIngestor:
    return RecordingIngestor()


@pytest.fixture
def jobs(tmp_path: Path, ingestor: RecordingIngestor) -> Iterator[Jobs]:
    jobs = open_jobs(tmp_path, ingestor)
    yield jobs
    jobs.close()
