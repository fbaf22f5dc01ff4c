"""The strict types of the package, and what a type checker sees of its public names, which are imported late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import agentformer

pytestmark = pytest.mark.process
ROOT = Path(agentformer.__file__).parent.parent
SCRIPT = """
import agentformer
from agentformer.cli import main

reveal_type(agentformer.connect(index_dir="a"))
reveal_type(agentformer.errors.NotFound)
reveal_type(agentformer.Scope())
agentformer.conect
agentformer.errors.NotFond
from agentformer.cli import mian
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of one check of the package and of a script that uses it."""
    pytest.importorskip("mypy")
    script = tmp_path_factory.mktemp("typing") / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "agentformer", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_package_has_strict_types(told: list[str]) -> None:
    assert [line for line in told if "script.py:" not in line] == []


def test_public_names_are_typed_and_a_misspelt_one_is_flagged(told: list[str]) -> None:
    said = [line.partition("script.py:")[2] for line in told if "script.py:" in line]
    numbered = {(int(line.split(":")[0]), line.split(":", 1)[1].strip()) for line in said}
    about = {number: text for number, text in sorted(numbered) if "note: Error code" not in text}
    assert set(about) == {5, 6, 7, 8, 9, 10}, told
    assert 'is "agentformer.factory.AgentFormer"' in about[5]
    assert "-> agentformer.errors.NotFound" in about[6].replace("def (*args: object) ", "")
    assert 'Scope"' in about[7]
    assert 'no attribute "conect"' in about[8]
    assert 'no attribute "NotFond"' in about[9]
    assert 'no attribute "mian"' in about[10]
