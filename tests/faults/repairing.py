"""The child of `test_repaired_database`: damages copies of a store in random ways, and repairs each with `doctor`.

    python repairing.py build FOLDER
    python repairing.py repair FOLDER SEED [SEED ...]     one line of JSON for each

What it reports of a seed: rows with another value than was stored, rows that are gone and were not named, rows that are
gone although the command ended with 0, and what else broke.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from agentformer.cli import main
from agentformer.memory.backends.faiss.backend import DATABASE_FILE
from agentformer.records.entry_json import entry_from_json, entry_to_json
from agentformer.records.integrity.findings import MAX_REPORTED
from agentformer.testing import make_entry
from agentformer.types import Link, Scope

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, so the package `tests` is not found
from tests.faults.damaging import open_store, plain

_PAGE = 4_096
_ENTRIES = 120
_INNER, _LEAVES = (2, 5), (10, 13)


def texts() -> Iterator[str]:
    """Yield texts of different lengths; every tenth continues on overflow pages."""
    for n in range(_ENTRIES):
        chance = random.Random(n)
        words = ["".join(map(chance.choice, ("bdfgklmnprstv", "aeiou") * 3)) for _ in range(700 if n % 10 == 3 else 25)]
        yield f"Fact {n}: {' '.join(words)}."


def build(folder: Path) -> None:
    """A store with former versions, a summary, overflow pages and free pages; beside it what it holds."""
    with closing(open_store(folder / "store")) as backend:
        stored = backend.store([make_entry(text, title=f"part {n}") for n, text in enumerate(texts())])
        removed = backend.store([make_entry(f"{text} To be removed.") for text in texts()])
        for entry in stored[::4]:
            backend.update(entry.id, {"content": f"{entry.content} It was changed."})
        originals = [entry.id for entry in stored[50:54]]
        backend.consolidate(
            make_entry("Four facts in short.", kind="summary", derived_from=tuple(map(Link, originals))), originals
        )
        backend.remove([entry.id for entry in removed])
        ids = [*(entry.id for entry in stored), backend.list(Scope(kinds=("summary",)))[0].id]
        told = {
            "entries": [entry_to_json(entry) for entry in backend.get(ids)],
            "history": {each: [entry_to_json(state) for state in backend.history(each)] for each in ids},
        }
    (folder / "truth.json").write_text(json.dumps(told))


class File:
    """The bytes of a database, and ways to damage them."""

    def __init__(self, data: bytes, chance: random.Random) -> None:
        self.data, self._chance = bytearray(data), chance
        starts = range(0, len(data), _PAGE)
        self._trees = [at for at in starts if data[at + 100 * (not at)] in (*_INNER, *_LEAVES)]
        self._others = [at for at in starts if at not in self._trees and any(data[at : at + _PAGE])]
        self._all = [*starts]

    def flip(self, at: int) -> None:
        """Change one byte."""
        self.data[at] ^= self._chance.randrange(1, 256)

    def bit(self) -> None:
        """Change one bit anywhere."""
        self.data[self._chance.randrange(len(self.data))] ^= 1 << self._chance.randrange(8)

    def head(self) -> None:
        """Change a byte of the header of a tree's page."""
        at = self._chance.choice(self._trees)
        self.flip(at + 100 * (not at) + self._chance.randrange(12))

    def pointer(self) -> None:
        """Change a byte of the list of a page's cells."""
        self.flip(self._pointers()[0])

    def cell(self) -> None:
        """Change a byte at the beginning of a cell: its length, its number or the types of its columns."""
        _, cell = self._pointers()
        self.flip(min(cell + self._chance.randrange(50), len(self.data) - 1))

    def run(self) -> None:
        """Overwrite a run of bytes."""
        length = self._chance.choice([2, 16, 200, 600])
        at = self._chance.randrange(len(self.data) - length)
        self.data[at : at + length] = self._chance.randbytes(length)

    def swap(self) -> None:
        """Exchange two pages."""
        one, other = self._chance.sample(self._all, 2)
        pages = self.data[one : one + _PAGE], self.data[other : other + _PAGE]
        self.data[other : other + _PAGE], self.data[one : one + _PAGE] = pages

    def zero(self) -> None:
        """Clear a page."""
        at = self._chance.choice(self._all[1:])
        self.data[at : at + _PAGE] = bytes(_PAGE)

    def overflow(self) -> None:
        """Change a byte of a page that belongs to no tree: it continues a long row, or lists free pages."""
        self.flip(self._chance.choice(self._others) + self._chance.choice([*range(8), 100, 2000]))

    def free(self) -> None:
        """Change the place or the number of the free pages."""
        self.flip(32 + self._chance.randrange(8))

    def schema(self) -> None:
        """Change a byte of the names and definitions of the tables, or of the file's header."""
        self.flip(self._chance.randrange(100, _PAGE) if self._chance.random() < 0.8 else self._chance.randrange(100))

    def letter(self) -> None:
        """Change a letter of a text."""
        words = [text[10:40].encode() for text in texts()]
        self._chance.shuffle(words)
        at = next(place for place in map(self.data.find, words) if place >= 0)
        self.data[at + self._chance.randrange(30)] ^= 1

    def _pointers(self) -> tuple[int, int]:
        """Return where a page of a tree says where one of its cells is, and this place."""
        page = self._chance.choice(self._trees)
        start = page + 100 * (not page)
        count = max(int.from_bytes(self.data[start + 3 : start + 5], "big"), 1)
        at = start + (12 if self.data[start] in _INNER else 8) + 2 * self._chance.randrange(min(count, 500))
        return at, page + int.from_bytes(self.data[at : at + 2], "big")


KINDS: tuple[tuple[Callable[[File], None], ...], ...] = (
    *((kind,) for kind in (File.bit, File.head, File.pointer, File.cell, File.run, File.swap, File.zero)),
    *((kind,) for kind in (File.overflow, File.free, File.schema, File.letter)),
    (File.letter, File.head),
    (File.letter, File.letter, File.pointer),
    (File.letter, File.zero),
    (File.letter, File.schema),
    (File.head, File.head),
    (File.cell, File.cell),
    (File.zero, File.zero),
    (File.swap, File.letter),
    (File.run, File.run),
)


def repair(folder: Path, truth: dict[str, Any], seed: int) -> dict[str, Any]:
    """Damage a copy, repair it, and compare."""
    chance = random.Random(seed)
    kinds = KINDS[seed % len(KINDS)]
    report: dict[str, Any] = {"seed": seed, "how": " and ".join(kind.__name__ for kind in kinds), "broken": []}
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        store = Path(temporary) / "store"
        shutil.copytree(folder / "store", store)
        file = File((store / DATABASE_FILE).read_bytes(), chance)
        for kind in kinds:
            kind(file)
        (store / DATABASE_FILE).write_bytes(file.data)
        arguments = ["--index-dir", str(store), "--upload-dir", str(Path(temporary) / "u"), "--embedder", "hashing"]
        told = CliRunner().invoke(main, ["doctor", "--repair", *arguments])
        report |= {"code": told.exit_code, "output": told.output[:3000]}
        if told.exception and not isinstance(told.exception, SystemExit):
            report["broken"] = traceback.format_exception(told.exception)[-6:]
            return report
        aside = "".join(each.read_text() for each in store.glob("damaged-*.jsonl"))
        try:
            with closing(open_store(store)) as backend:
                compare(backend, truth, (told.output, aside), report)
        except Exception:
            report["unopened"] = traceback.format_exc(limit=-6)
        again = CliRunner().invoke(main, ["doctor", *arguments])
        if again.exit_code and told.exit_code != 3:
            report["again"] = again.output[-2000:]
    return report


def compare(backend: Any, truth: dict[str, Any], named: tuple[str, str], report: dict[str, Any]) -> None:
    """Add to the report which rows are wrong, which are gone, and which of these nobody named."""
    known = {entry["id"]: plain(entry_from_json(entry)) for entry in truth["entries"]}
    found = {entry.id: plain(entry) for entry in backend.get([*known])}
    wrong = [each for each, entry in found.items() if entry != known[each]]
    gone = [each for each in known if each not in found]
    versions = []
    for each in found:
        expected = [plain(entry_from_json(state)) for state in truth["history"][each]]
        states = [plain(state) for state in backend.history(each)]
        wrong += [f"version of {each}" for state in states if state not in expected]
        versions += [each] * (len(expected) - len(states))
    report["wrong"] = wrong
    report["gone"], report["versions"] = gone, versions
    report["unnamed"] = [each for each in [*gone, *versions] if each not in named[1]]
    if len(gone) + len(versions) <= MAX_REPORTED:
        report["unnamed"] += [each for each in [*gone, *versions] if each not in named[0]]


if __name__ == "__main__":
    place = Path(sys.argv[2])
    if sys.argv[1] == "build":
        build(place)
    else:
        known_rows = json.loads((place / "truth.json").read_text())
        for number in map(int, sys.argv[3:]):
            print(json.dumps(repair(place, known_rows, number)), flush=True)
