"""A memory's jobs and what is done with their files, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentformer.jobs.queue import Jobs
from tests.jobs.bringing import Bring, made


@pytest.fixture
def bring() -> Bring:
    return Bring()


@pytest.fixture
def jobs(tmp_path: Path, bring: Bring) -> Iterator[Jobs]:
    jobs = made(tmp_path, bring)
    yield jobs
    jobs.close()
