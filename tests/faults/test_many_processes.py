"""Two servers, commands, a notebook, an MCP server and a cleaner on one folder at once: whatever one of them has been
told is kept, every other one finds by its next search, by words and by vectors, and none sees an error.

A second and a half in the normal run; `FAULTS_SECONDS=300` for more.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from neighbours import EMBEDDER, ByCommands, ByHttp, ByMcp, Neighbour, Notebook

from agentformer.factory import connect

SECONDS = float(os.environ.get("FAULTS_SECONDS", "1.5"))
PAUSE = 0.3  # between two additions of one: all have to look for all, and commands take a while to start
AT_ONCE = 10  # texts that one search asks for
LETTERS = "bcdfghjklmnpqrstvwxz"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGTERM")


class Announced:
    """What has been acknowledged to anybody, in order of time. `ended` is where all wait until nobody adds any more."""

    def __init__(self, parties: int) -> None:
        self.ended = threading.Barrier(parties)
        self.texts: list[tuple[float, str, str]] = []
        self.errors: list[str] = []
        self.found: Counter[str] = Counter()
        self.slowest = 0.0  # seconds from an acknowledgement to the end of the last search for it

    def add(self, name: str, text: str) -> None:
        self.texts.append((time.monotonic(), name, text))  # one step, in CPython: nobody sees a part of it


def work(name: str, neighbour: Neighbour, announced: Announced, ends: float) -> None:
    """Add and look for what has been added, by anybody, at least once and until the end; then look for all that is
    left."""
    choose = random.Random(f"{name} {time.time_ns()}")
    seen = 0
    try:
        while not seen or time.monotonic() < ends:
            text = "".join(choose.choice(LETTERS) for _ in range(12))
            neighbour.add(text)
            announced.add(name, text)
            seen = look(name, neighbour, announced, seen)
            time.sleep(PAUSE)
        announced.ended.wait()
        while seen < len(announced.texts):
            seen = look(name, neighbour, announced, seen)
    except Exception as error:
        announced.errors.append(f"{name}: {error!r}")
        announced.ended.abort()


def look(name: str, neighbour: Neighbour, announced: Announced, seen: int) -> int:
    """Search for what was acknowledged since `seen`; how much of all has been looked for now."""
    fresh = announced.texts[seen:]
    for start in range(0, len(fresh), AT_ONCE):
        group = fresh[start : start + AT_ONCE]
        found = neighbour.find([text for _, _, text in group])
        missing = [(by, text) for _, by, text in group if text not in found]
        assert not missing, f"not found: {missing}"
        announced.found[name] += len(group)
        announced.slowest = max(announced.slowest, time.monotonic() - group[0][0])
    return seen + len(fresh)


def test_six_processes_at_once_each_find_what_any_of_them_was_told_is_kept(tmp_path: Path) -> None:
    makers: dict[str, Callable[[], Neighbour]] = {
        "server": lambda: ByHttp(tmp_path),
        "uploads": lambda: ByHttp(tmp_path, uploads=True),
        "commands": lambda: ByCommands(tmp_path),
        "notebook": lambda: Notebook(tmp_path),
        "mcp": lambda: ByMcp(tmp_path),
        "cleaner": lambda: Notebook(tmp_path, cleans=True),
    }
    announced = Announced(len(makers))
    with ExitStack() as stack:
        neighbours = {name: stack.enter_context(closing(make())) for name, make in makers.items()}
        ends = time.monotonic() + SECONDS
        threads = [threading.Thread(target=work, args=(*each, announced, ends)) for each in neighbours.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert announced.errors == []
    added = Counter(name for _, name, _ in announced.texts)
    texts = {text for _, _, text in announced.texts}
    print(f"{SECONDS} s; added {dict(added)}; found {dict(announced.found)}; latest after {announced.slowest:.1f} s")
    assert set(added) == set(makers)
    assert set(announced.found.values()) == {len(texts)}
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder=EMBEDDER) as af:
        assert [check for check in af.verify() if check.found] == []
        entries = {entry.content for entry in af.memory.list(limit=10_000)}
        assert texts <= entries
