"""The folder of the original files has exactly the files that stored documents name, whatever concurrent uploads,
removals and kills did. A file of somebody else in this folder is reported, and never deleted.

A few rounds and one kill of each backend in the normal suite. The long form has many rounds, and a kill at every point.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from killing import Killing, spread
from long_form import LONG

from agentformer.factory import AgentFormer, connect
from agentformer.types import Scope
from tests import forked

ROUNDS = 400 if LONG else 8
KILLS = 1  # of each backend in the normal suite
SEED = int(os.environ.get("FAULTS_KILLS_SEED") or random.randrange(10**6))
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")

# Each line of the input is one round: NAME=TEXT uploads a text, and NAME=- removes the document of this name.
UPLOADER = """
import sys
from agentformer.errors import Conflict, NotFound
from agentformer.factory import connect
folder, backend = sys.argv[1:]
af = connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/uploads", embedder="hashing", backend=backend)
af.rag.ready()
print("ready", flush=True)
for line in sys.stdin:
    for name, text in (pair.split("=") for pair in line.split()):
        try:
            if text == "-":
                for document in af.rag.documents():
                    if document.name == name:
                        af.rag.remove(document.id)
            else:
                af.rag.upload(f"The numbat {text} sleeps. ".encode() * 20, name=name)
        except (Conflict, NotFound) as error:
            print(type(error).__name__, file=sys.stderr)
    print("done", flush=True)
af.close()
"""


def start(folder: Path, backend: str) -> Any:
    process = forked.program(UPLOADER, folder, backend, stdin=subprocess.PIPE)
    assert answer(process) == "ready"
    return process


def answer(process: Any) -> str:
    return str(process.stdout.readline().strip())


def send(process: Any, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def opened(folder: Path, backend: str) -> AgentFormer:
    return connect(
        index_dir=folder / "index", upload_dir=folder / "uploads", embedder="hashing", backend=backend, clean_every=0
    )


def named(af: AgentFormer) -> list[str]:
    """Return the SHA-256 of the files that documents name."""
    scope = Scope(kinds=("document",), include_archived=True)
    return sorted({str(entry.metadata["sha256"]) for entry in af.backend.list(scope, limit=1000)})


def stored(folder: Path) -> list[str]:
    """Return every file in the folder of the original files, except the lock of the folder. For an original, return
    its SHA-256."""
    files = (path for path in (folder / "uploads").rglob("*") if path.is_file() and path.name != ".lock")
    return sorted(path.stem if path.suffix == ".bin" else path.name for path in files)


def rounds(choose: random.Random) -> list[str]:
    """Return the lines of one process: uploads of a few texts under one name, and removals."""
    return [" ".join(f"numbat.txt={choose.choice('aab-')}" for _ in range(3)) for _ in range(ROUNDS)]


@pytest.mark.parametrize("backend", ["faiss", "local_json"])
def test_concurrent_uploads_of_one_name_leave_only_the_originals_of_stored_documents(
    tmp_path: Path, backend: str
) -> None:
    processes = [start(tmp_path, backend) for _ in range(2)]
    choose = random.Random(18)
    with closing(opened(tmp_path, backend)) as af:
        for lines in zip(*(rounds(choose) for _ in processes), strict=True):
            for process, line in zip(processes, lines, strict=True):
                send(process, line)
            assert [answer(process) for process in processes] == ["done", "done"]
            assert stored(tmp_path) == named(af), lines
        for process in processes:
            process.communicate(timeout=60)
        for document in af.rag.documents():
            af.rag.remove(document.id)
        assert stored(tmp_path) == []


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killing]:
    found = Killing(tmp_path_factory.mktemp("kills"))
    yield found
    found.close()


@pytest.mark.parametrize("work", ["originals", "originals local_json"])
def test_after_a_kill_only_the_originals_of_stored_documents_are_left(killing: Killing, work: str) -> None:
    """`killing` opens the memory after each kill, and `states.faults` compares its files with its documents."""
    total = killing.undisturbed(work).run.points
    print(f"FAULTS_KILLS_SEED={SEED}")
    points = range(total) if LONG else spread(total, KILLS, random.Random(SEED))
    killed = sum(killing.at_point(work, number) for number in points)
    print(f"{work}: {killed} kills at {total} points")
    assert killed >= 0.9 * len(points)
