"""The command is interrupted and killed while it works, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from agentformer.cli.output import INTERRUPTED
from agentformer.evaluation.optimizing.cache import work_folder
from tests.evaluation.far_apart import far_apart, written
from tests.forked import SERVE, start

pytestmark = pytest.mark.process


def command(folder: Path, work: Path) -> list[str]:
    place = ("--index-dir", str(work.parent / "index"), "--upload-dir", str(work.parent / "up"))
    options = ("--level", "full", "--only", "window_tokens", "--json", "--embedder", "hashing")
    return ["optimize", str(folder), *options, "--work", str(work), *place]


def lines(work: Path) -> list[bytes]:
    path = work_folder(work) / "measured.jsonl"
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


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
    for wanted, by in ((2, signal.SIGINT), (4, signal.SIGKILL)):  # lines in the journal, its first one among them
        code = f"from agentformer.cli import main\nmain({command(folder, work)!r})"
        process = start(code, SERVE, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE)
        try:
            while len(lines(work)) < wanted and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(by)
            ended.append(process.wait(60))
        finally:
            process.kill()
            process.wait(60)
    assert ended == [INTERRUPTED, -signal.SIGKILL]
    kept = [line for line in lines(work) if line.endswith(b"\n")]
    assert len(kept) >= 4
    told = outcome(folder, work)
    assert lines(work)[: len(kept)] == kept
    measured = [json.loads(line) for line in lines(work)[1:]]
    keys = [(json.dumps(each["configuration"], sort_keys=True), each["half"]) for each in measured]
    assert len(keys) == len(set(keys))
    assert told["reused"] == len(kept) - 1
    whole = outcome(folder, tmp_path / "other")
    for name in ("chosen", "current", "best", "gain", "verdict", "questions"):
        assert told[name] == whole[name]
    assert told["chosen"] == {"window_tokens": 32}
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
