"""Sixteen clients of mixed work, while workers, servers, a node, the pooler and PostgreSQL are killed: no acknowledged
write is lost, and no error occurs that a client could not expect. `steady_load.py` runs longer and measures memory."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
from tests.faults import steady_load
from tests.faults.long_form import long_form

SECONDS = float(os.environ.get("FAULTS_SECONDS", "60"))
CLIENTS = int(os.environ.get("FAULTS_CLIENTS", "16"))
pytestmark = [
    long_form,
    pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc of Linux"),
]


@pytest.mark.parametrize("setup", ["one", "two", "postgres"])
def test_nothing_acknowledged_is_lost_while_processes_are_killed(
    setup: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady_load, "DISTURBED", 0.8)
    found = steady_load.measured(setup, tmp_path, SECONDS / 60, CLIENTS, "hashing", 4.0, random.randrange(10**6))
    assert found.problems == []
    assert found.kills and found.writes
