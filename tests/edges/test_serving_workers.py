"""Workers of one server share the processors."""

from __future__ import annotations

import os
import sys

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
from agentformer.api.serving.gunicorn import share_processors


@pytest.mark.skipif(sys.platform != "linux", reason="counts the processors that Linux allows")
@pytest.mark.parametrize(
    ("workers", "given", "expected"), [(1, None, None), (2, None, "4"), (3, None, "2"), (20, None, "1"), (2, "7", "7")]
)
def test_each_worker_gets_its_share_unless_the_user_has_set_one(
    monkeypatch: pytest.MonkeyPatch, workers: int, given: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    share_processors(workers)
    assert os.environ.get("OMP_NUM_THREADS") == expected
