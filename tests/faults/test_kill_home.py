"""`kill -9` during the sync of a memory home, then another sync: the memory and the files are as if nothing had
happened. The sync is killed before and after each kind of effect, and while it writes a file."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import home_sync
import pytest
from long_form import LONG

from agentformer.types import Scope
from tests import forked

pytestmark = [pytest.mark.process, pytest.mark.fault]

KILLS = int(os.environ.get("FAULTS_KILLS", "50" if LONG else "2"))
SEED = int(os.environ.get("FAULTS_KILLS_SEED", "22"))
_OWN = re.compile(r"(?m)^(id|created_at|updated_at): .*$")


@pytest.fixture
def killer() -> Iterator[Any]:
    process = forked.script(Path(__file__).with_name("home_sync.py"), stdin=subprocess.PIPE)
    yield process
    process.communicate(timeout=60)


def ask(killer: Any, folder: Path, point: int) -> str:
    killer.stdin.write(f"{folder / 'store'}\t{folder / 'home'}\t{point}\n")
    killer.stdin.flush()
    return str(killer.stdout.readline().strip())


def prepare(folder: Path) -> None:
    """A memory and its home, of which both sides have changed in every way."""
    home = folder / "home"
    with home_sync.connect(folder / "store") as af:
        entries = [af.memory.store(f"Fact {n}.", title=f"T{n}") for n in range(16)]
        af.markdown.export(home)

        def path(number: int) -> Path:
            return home / "facts" / f"{entries[number].id}.md"

        for number in (0, 1, 2, 3, 4):
            path(number).write_text(path(number).read_text().replace("Fact", "Edited"))
        af.memory.update(entries[1].id, content="By the agent.")  # both
        af.memory.update(entries[2].id, salience=0.5)
        af.memory.remove(entries[3].id)  # and edited
        af.backend.update(entries[4].id, {"archived_at": entries[4].created_at})  # and edited
        af.memory.update(entries[5].id, content="Changed.")
        af.memory.remove(entries[6].id)
        af.memory.update(entries[7].id, category="decisions")
        (home / "context").mkdir()
        path(8).rename(home / "context" / "moved.md")
        path(9).unlink()
        path(10).unlink()
        af.memory.update(entries[10].id, content="Changed and deleted.")
        (home / "core").mkdir()
        (home / "core" / "persona.md").write_text("Speaks Finnish.")
        for number in range(3):
            (home / "context" / f"new {number}.md").write_text(f"---\ntags: [a]\n---\nNew {number}.")
        af.memory.store("Stored meanwhile.")


def observe(folder: Path) -> tuple[list[Any], dict[str, str]]:
    """The entries with their numbers of versions, and the files, without ids and times of storing."""
    with home_sync.connect(folder / "store") as af:
        names = {entry.id: entry.content for entry in af.backend.list(Scope(include_archived=True), limit=1_000)}
        entries = [
            (
                *(entry.title, entry.content, entry.category, entry.kind, entry.salience, entry.version),
                *(str(entry.metadata), entry.archived_at is None, len(af.memory.history(entry.id))),
            )
            for entry in af.backend.list(Scope(include_archived=True), limit=1_000)
        ]
        assert all(check.found == 0 for check in af.verify())
    files = {}
    for path in sorted((folder / "home").rglob("*")):
        name = path.relative_to(folder / "home").as_posix()
        for entry_id, content in names.items():
            name = name.replace(entry_id, content)
        if path.is_file() and not name.startswith(".agentformer/"):
            files[name] = _OWN.sub(r"\1", path.read_text())
    assert [*(folder / "home").rglob("tmp/*")] == []
    return sorted(entries), files


def test_after_a_kill_the_next_sync_ends_as_one_that_was_not_killed(tmp_path: Path, killer: Any) -> None:
    prepare(tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "whole")
    points = int(ask(killer, tmp_path / "whole", -1))
    expected = observe(tmp_path / "whole")
    assert points > 50 and len(expected[0]) == 20
    chosen = random.Random(SEED).sample(range(points), min(KILLS, points))
    for point in sorted(chosen):
        folder = tmp_path / str(point)
        shutil.copytree(tmp_path / "base", folder)
        assert ask(killer, folder, point) == "killed", point
        assert int(ask(killer, folder, -1)) >= 0
        found = observe(folder)
        assert found == expected, f"killed at point {point} of {points}"
        shutil.rmtree(folder)
