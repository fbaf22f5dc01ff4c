"""The command is interrupted and killed while it works, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from agentformer.cli.output import INTERRUPTED
from agentformer.evaluation.cache import work_folder
from tests.evaluation.far_apart import far_apart, written
from tests.forked import SERVE, start

pytestmark = pytest.mark.process


def command(folder: Path, work: Path) -> list[str]:
    place = ("--index-dir", str(work.parent / "index"), "--upload-dir", str(work.parent / "up"))
    options = ("--level", "full", "--only", "window_tokens", "--json", "--embedder", "hashing")
    return ["optimize", str(folder), *options, "--work", str(work), *place]


def measured(work: Path) -> int:
    """The number of measurements that are kept."""
    path = work_folder(work) / "measured.sqlite3"
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.OperationalError):  # there is no table yet
        return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])
    return 0


def outcome(folder: Path, work: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, command(folder, work))
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_what_was_measured_before_the_end_is_not_measured_again(tmp_path: Path) -> None:
    folder, work = written(far_apart(), tmp_path / "questions"), tmp_path / "work"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    ended = []
    for wanted, by in ((1, signal.SIGINT), (3, signal.SIGKILL)):
        code = f"from agentformer.cli import main\nmain({command(folder, work)!r})"
        process = start(code, SERVE, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE)
        try:
            while measured(work) < wanted and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(by)
            ended.append(process.wait(60))
        finally:
            process.kill()
            process.wait(60)
    assert ended == [INTERRUPTED, -signal.SIGKILL]
    kept = measured(work)
    told = outcome(folder, work)
    assert kept >= 3 and told["reused"] == kept
    assert measured(work) == len(told["tried"]) + 2  # the test half, with the present and the chosen settings
    whole = outcome(folder, tmp_path / "other")
    for name in ("chosen", "current", "best", "gain", "verdict", "questions"):
        assert told[name] == whole[name]
    assert told["chosen"] == {"window_tokens": 32}
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
