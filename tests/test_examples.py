"""The shell examples of the documentation that call `curl`, run as they stand against a real server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")
if not shutil.which("curl") or not shutil.which("bash"):
    pytest.skip("curl or bash is not installed", allow_module_level=True)

from tests.edges.running import Running
from tests.readers.conftest import make_pdf

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/HTTP.md")
ADDRESS = "http://127.0.0.1:8808"
BOUND = 120.0  # seconds for one example


def examples() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)):
            if re.search(r"^\s*(\w+=.*)?curl |\$\(curl |^curl", block, re.M):
                yield f"{page}-{number}", block


EXAMPLES = dict(examples())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader of the examples has at hand."""
    keys = "The caretaker holds the keys. They hang in the blue cupboard."
    folder = tmp_path_factory.mktemp("reader")
    (folder / "handbook.pdf").write_bytes(make_pdf([["Welcome to the reading room."], [keys]]))
    (folder / "notes.txt").write_text("Tea is served at four.", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    mine = {
        "AGENTFORMER_EMBEDDER": "hashing",
        "AGENTFORMER_INDEX_DIR": str(folder / "indexes"),
        "AGENTFORMER_UPLOAD_DIR": str(folder / "uploads"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    return {**os.environ, **mine}


@pytest.fixture(scope="module")
def server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    running = Running(folder, **environment)
    yield f"http://127.0.0.1:{running.port}"
    running.close()


def test_the_documentation_has_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_it_says(name: str, server: str, folder: Path, environment: dict[str, str]) -> None:
    """Every command of it succeeds; curl fails here where the server answers with an error."""
    script = f'curl() {{ command curl --fail-with-body -sS "$@"; }}\n{EXAMPLES[name].replace(ADDRESS, server)}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=BOUND,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(folder / 'errors.txt').read_text()}"
