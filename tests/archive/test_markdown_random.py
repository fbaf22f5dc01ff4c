"""Random changes of both sides of a memory home: after a few syncs both are equal, and no text is lost."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import agentformer
from agentformer.archive.markdown.entries import folder_of
from agentformer.archive.markdown.file_matching import HomeReport
from agentformer.archive.markdown.pages import Page, parse
from agentformer.errors import AgentFormerError
from agentformer.types import Scope
from tests.faults.long_form import LONG

pytestmark = pytest.mark.slow
FOLDERS = ("facts", "decisions", "context", "unknown")


class Changes:
    """Changes that a person makes in the folder, and an agent in the memory."""

    def __init__(self, af: agentformer.AgentFormer, home: Path, choose: random.Random) -> None:
        self.af, self.home, self.choose = af, home, choose
        self.number = 0

    def text(self, who: str) -> str:
        self.number += 1
        return f"Text {self.number} {who}."

    def files(self) -> list[Path]:
        return sorted(self.home.glob("*/**/*.md"))

    def some(self) -> str:
        return self.choose.choice(self.af.memory.list(limit=1_000)).id

    def one(self) -> None:
        steps: list[Callable[[], object]] = [
            *(self.edit, self.edit, self.move, self.create, self.copy),
            lambda: self.choose.choice(self.files()).unlink(),
            lambda: self.af.memory.update(self.some(), content=self.text("by the agent")),
            lambda: self.af.memory.update(self.some(), category=self.choose.choice(["", "decisions", "context"])),
            lambda: self.af.backend.update(self.some(), {"archived_at": self.af.memory.get(self.some()).created_at}),
            lambda: self.af.memory.supersede(self.some(), self.some()),
            lambda: self.af.memory.store(self.text("stored")),
        ]
        with suppress(AgentFormerError, IndexError):  # such as: nothing is left to change
            self.choose.choice(steps)()

    def edit(self) -> None:
        path = self.choose.choice(self.files())
        head, fence, _ = path.read_text().rpartition("\n---\n\n")
        if fence:
            path.write_text(f"{head}{fence}{self.text('by hand')}\n")

    def move(self) -> None:
        path, number = self.choose.choice(self.files()), self.choose.random()
        target = self.home / self.choose.choice(FOLDERS) / (path.name if number < 0.5 else f"{number}.md")
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            path.rename(target)

    def create(self) -> None:
        path = self.home / self.choose.choice(FOLDERS[:3]) / f"{self.choose.random()}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.text("new"))

    def copy(self) -> None:
        path = self.choose.choice(self.files())
        shutil.copy(path, path.with_name(f"{self.choose.random()}.md"))


def settled(af: agentformer.AgentFormer, home: Path) -> HomeReport:
    """Sync until nothing changes. An archived entry makes the one that it superseded live again, one sync later."""
    first = af.markdown.sync(home, delete=True)
    for _ in range(4):
        last = af.markdown.sync(home, delete=True)
        if not last.changes_anything:
            return first
        assert not (last.conflicts or last.changed or last.added), last
    raise AssertionError(last)


def check_equal(af: agentformer.AgentFormer, home: Path, bad: set[str]) -> None:
    """Every live entry has one file with its fields in the folder of its category, but for files with errors."""
    pages: dict[str, tuple[Page, str]] = {}
    excused = set()
    for path in sorted(home.glob("*/**/*.md")):
        page, name = parse(path.read_bytes()), path.relative_to(home).as_posix()
        if name in bad:
            excused.add(page.id)
        else:
            assert page.id not in pages
            pages[page.id] = page, name
    for entry in af.memory.list(limit=1_000):
        if entry.id in pages or entry.id not in excused:
            page, name = pages.pop(entry.id)
            assert page.edits(entry) == {} and name.split("/")[0] == folder_of(entry), name
    assert pages == {}


@pytest.mark.parametrize("seed", range(100 if LONG else 2))
def test_both_sides_become_equal_and_every_text_is_kept(tmp_path: Path, seed: int) -> None:
    home = tmp_path / "home"
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        changes = Changes(af, home, random.Random(seed))
        for number in range(12):
            af.memory.store(changes.text("at first"), category=("", "decisions", "context")[number % 3])
        af.markdown.export(home)
        for _ in range(6):
            for _ in range(changes.choose.randint(1, 6)):
                changes.one()
            texts = {path: str(parse(path.read_bytes()).values["content"]) for path in changes.files()}
            bad = {problem.name for problem in settled(af, home).failed}
            check_equal(af, home, bad)
            entries = af.backend.list(Scope(include_archived=True), limit=5_000)
            kept = {each.content for entry in entries for each in (entry, *af.backend.history(entry.id))}
            left = "".join((home / name).read_text() for name in bad if (home / name).exists())
            assert [text for text in texts.values() if text not in kept and text not in left] == []
            for name in bad:
                (home / name).unlink(missing_ok=True)
            settled(af, home)
