"""The strict types of the package, and what a type checker sees of its public names, which are imported late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import agentformer

pytestmark = pytest.mark.process
ROOT = Path(agentformer.__file__).parent
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


def test_the_package_has_strict_types() -> None:
    pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names_are_typed_and_a_misspelt_one_is_flagged(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "script.py").write_text(SCRIPT)
    seen = ["__init__.py", "_version.py", "errors.py", "factory.py", "types", "cli/__init__.py"]
    options = ["--config-file=", "--strict", "--follow-imports=skip", "--ignore-missing-imports"]
    cache = f"--cache-dir={ROOT.parent / '.pytest_cache' / 'mypy'}"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, cache, "script.py", *(str(ROOT / name) for name in seen)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = {line for line in done.stdout.splitlines() if line.startswith("script.py")}
    told = {(int(line.split(":")[1]), line.split(":", 2)[2].strip()) for line in said}
    about = {number: text for number, text in sorted(told) if "note: Error code" not in text}
    assert set(about) == {5, 6, 7, 8, 9, 10}, done.stdout + done.stderr
    assert 'is "agentformer.factory.AgentFormer"' in about[5]
    assert "-> agentformer.errors.NotFound" in about[6].replace("def (*args: object) ", "")
    assert 'Scope"' in about[7]
    assert 'no attribute "conect"' in about[8]
    assert 'no attribute "NotFond"' in about[9]
    assert 'no attribute "mian"' in about[10]
