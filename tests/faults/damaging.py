"""The child of `test_damaged_database`: damages copies of a store in random ways, and asks each for everything.

    python damaging.py build FOLDER
    python damaging.py ask FOLDER SEED [SEED ...]     one line of JSON for each

What it reports of a seed: the calls that broke a promise, those that raised, those whose answer lacked something, and
whether the damage is found by who looks for it.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import NotFound, StoreError
from agentformer.memory.backends.faiss.backend import DATABASE_FILE, FaissMemoryBackend
from agentformer.records.codec import COUNTED
from agentformer.records.entry_json import entry_from_json, entry_to_json
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.testing import make_entry
from agentformer.types import Link, MemoryEntry, Query, Scope, Source, Use

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, so the package `tests` is not found
from tests.faults.long_form import LONG
from tests.records import damaged_rows

AT = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACES = ("default", "other")
TO_DO = (
    "agentformer doctor",
    "backup",
    "upgrade agentformer",
    "disk space",
    "choose another folder",
    "delete the folder",
)
_PAGE = 4_096
_PAGES = 100  # of a list: more can only be a loop
_ENTRIES = 200 if LONG else 80


def texts() -> list[str]:
    """Return fixed texts of different lengths. The last text is longer than several pages of the database.

    Almost every word occurs in one text only. So a sound store finds each text by its beginning.
    """
    short = []
    for n in range(_ENTRIES - 1):
        chance = random.Random(n)
        words = ["".join(map(chance.choice, ("bdfgklmnprstv", "aeiou") * 3)) for _ in range(30 + 10 * (n % 12))]
        short.append(f"Note {n}: {' '.join(words)}.")
    return [*short, "\n\n".join(short)[:20_000]]


def build(folder: Path) -> None:
    """A store with all that a store can hold, and beside it what that is."""
    backend = open_store(folder / "store")
    entries = [
        make_entry(
            text,
            namespace=NAMESPACES[n % 5 == 0],
            title=f"paragraph {n}",
            metadata={"number": n, "name": f"part {n % 7}", "näin": ["a", {"b": None}]} if n % 3 else {},
            source=Source(f"document {n % 9}", f"file {n % 9}.md", n, str(n), 0, len(text)) if n % 4 == 0 else None,
            occurred_at=AT if n % 6 == 0 else None,
            user_id="aino" if n % 10 == 0 else None,
            speaker="väinö",
        )
        for n, text in enumerate(texts())
    ]
    stored = backend.store(entries)
    for entry in stored[::6]:
        backend.update(entry.id, {"content": f"{entry.content} It was changed.", "metadata": {"changed": True}})
    originals = [entry.id for entry in stored if entry.namespace == "default"][40:44]
    links = tuple(Link(entry_id) for entry_id in originals)
    backend.consolidate(make_entry("Four paragraphs in short.", kind="summary", derived_from=links), originals)
    backend.search(Query("the store"))
    ids = [*(entry.id for entry in stored), backend.list(Scope(kinds=("summary",)))[0].id]
    told: dict[str, Any] = {
        "entries": [entry_to_json(entry) for entry in backend.get(ids)],
        "history": {entry_id: [entry_to_json(state) for state in backend.history(entry_id)] for entry_id in ids},
    }
    backend.close()
    connection = sqlite3.connect(folder / "store" / DATABASE_FILE)
    rows = "SELECT e.id, w.span_start, w.span_end FROM windows AS w JOIN entries AS e ON e.num = w.entry"
    told["spans"] = [*map(list, connection.execute(rows))]
    connection.close()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        shutil.copytree(folder / "store", Path(temporary) / "store")
        sound = Asking(Path(temporary) / "store", told)
        sound.everything()
        sound.close()
    assert not (sound.broken or sound.raised or sound.lacking), (sound.broken, sound.raised, sound.lacking)
    (folder / "truth.json").write_text(json.dumps(told))


def open_store(folder: Path) -> FaissMemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder())


def damage(path: Path, chance: random.Random) -> str:
    """Damage a file somewhere; what was done, in words."""
    data = bytearray(path.read_bytes())
    pages = len(data) // _PAGE
    page = 0 if chance.random() < 0.05 else chance.randrange(pages)
    start = page * _PAGE
    how = chance.choice(["bits", "text", "text", "head", "zero", "noise", "swap", "cut"])
    if how == "bits":
        for _ in range(chance.choice([1, 1, 2, 8])):
            data[start + chance.randrange(_PAGE)] ^= 1 << chance.randrange(8)
    elif how == "text":  # of an entry, where no index has it: nothing but a checksum finds a letter that is another one
        found = [data.find(text[120:150].encode()) for text in chance.sample(texts(), 20) if len(text) > 150]
        letters = [i for at in found if at >= 0 for i in range(at, at + 30) if 97 <= data[i] < 122]
        data[chance.choice(letters)] ^= 1
    elif how == "head":  # of a page, where the tree is
        data[start + chance.randrange(24)] ^= 1 << chance.randrange(8)
    elif how == "zero":
        data[start : start + _PAGE] = bytes(_PAGE)
    elif how == "noise":
        length = chance.choice([16, 200, _PAGE])
        place = start + chance.randrange(_PAGE - length + 1)
        data[place : place + length] = chance.randbytes(length)
    elif how == "swap":
        other = chance.randrange(pages) * _PAGE
        data[start : start + _PAGE], data[other : other + _PAGE] = (
            data[other : other + _PAGE],
            data[start : start + _PAGE],
        )
    else:
        del data[chance.randrange(len(data) // 2, len(data)) :]
    path.write_bytes(data)
    return f"{how} in page {page + 1} of {pages}"


class Asking:
    """Asks a damaged store for everything, and compares with what was stored."""

    def __init__(self, folder: Path, truth: dict[str, Any]) -> None:
        self._entries = {entry.id: entry for entry in map(entry_from_json, truth["entries"])}
        self._history = {
            key: [plain(entry_from_json(state)) for state in states] for key, states in truth["history"].items()
        }
        self._backend = open_store(folder)
        self._spans = {tuple(row) for row in truth["spans"]}
        self._gone: dict[str, MemoryEntry] = {}
        self.broken: list[str] = []  # promises
        self.raised: list[str] = []  # what the errors said
        self.lacking: list[str] = []

    def everything(self) -> None:
        """Each question alone: an error of one says nothing of the next."""
        for entry_id in self._entries:
            self._ask("get", lambda i=entry_id: self._see("get", self._backend.get([i]), [i]))
            self._ask("history", lambda i=entry_id: self._see_history(i))
        self._ask("get all", lambda: self._see("get all", self._backend.get([*self._entries]), [*self._entries]))
        for namespace in NAMESPACES:
            scope = Scope(namespace)
            self._ask("list", lambda s=scope: self._see_pages(replace(s, include_archived=True)))
            self._ask("live", lambda s=scope: self._see_pages(s))
            self._ask("latest", lambda s=scope: self._see("latest", self._backend.latest(s)))
            self._ask("count", lambda s=scope: self._see_count(replace(s, include_archived=True)))
            for mode in ("lexical", "dense", "hybrid"):
                for number in (3, 17, 50, 121):
                    self._ask(mode, lambda s=scope, m=mode, n=number: self._search(s, m, n))
        self._ask("namespaces", lambda: self._see_namespaces())
        for asked in (self._backend.spaces, self._backend.status, lambda: self._backend.pending(Scope())):
            self._ask("status", asked)

    def change(self, chance: random.Random) -> None:
        """What is written into a damaged store is acknowledged and there, or refused."""
        ids = chance.sample(
            [i for i, entry in self._entries.items() if not entry.archived_by and not entry.derived_from], 8
        )
        for entry_id in ids[:4]:
            self._ask("update", lambda i=entry_id: self._update(i))
        self._ask("touch", lambda: self._backend.touch([Use(ids[4], AT, matches=1)]))
        for entry_id in ids[5:7]:
            self._ask("remove", lambda i=entry_id: self._remove(i))
        self._ask("store", lambda: self._store([make_entry(f"A new one, {n}.") for n in range(3)]))
        self._ask("remove scope", lambda: self._remove(Scope(NAMESPACES[1], user_id="aino")))

    def close(self) -> None:
        self._ask("close", self._backend.close)

    def _ask(self, name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except StoreError as error:
            self.raised.append(f"{name}: {error}")
            if not any(words in str(error) for words in TO_DO):
                self.broken.append(f"{name} does not say what to do: {error}")
        except Exception:
            self.broken.append(f"{name}: {traceback.format_exc(limit=-6)}")

    def _see(self, name: str, answer: Any, expected: list[str] | None = None) -> None:
        for entry in answer:
            known = self._entries.get(entry.id) or self._gone.get(entry.id)
            if entry.id in self._gone:
                self.lacking.append(f"{name}: {entry.id} was not removed")
            if known is None or plain(entry) != plain(known):
                self.broken.append(f"{name} gave {entry}, and stored was {known}")
        if expected is not None and len(answer) < len(expected):
            self.lacking.append(f"{name}: {len(expected) - len(answer)} entries")

    def _see_history(self, entry_id: str) -> None:
        states = [plain(state) for state in self._backend.history(entry_id)]
        known = self._history[entry_id]
        if any(state not in known for state in states):
            self.broken.append(f"history of {entry_id} gave {states}, and it was {known}")
        if len(states) < len(known):
            self.lacking.append(f"history: {entry_id}")

    def _see_pages(self, scope: Scope) -> None:
        found: list[MemoryEntry] = []
        for _ in range(_PAGES):
            page = self._backend.list(scope, after=found[-1].id if found else "", limit=30)
            if not page:
                break
            found += page
        else:
            self.broken.append(f"list does not end: {len(found)}")
        if any(entry.namespace != scope.namespace for entry in found):
            self.broken.append("list left its namespace")
        self._see("list", found, [*self._inside(scope)])

    def _inside(self, scope: Scope) -> list[str]:
        return [
            entry.id
            for entry in self._entries.values()
            if entry.namespace == scope.namespace and (scope.include_archived or entry.archived_at is None)
        ]

    def _see_count(self, scope: Scope) -> None:
        if self._backend.count(scope) != len(self._inside(scope)):
            self.lacking.append("count")

    def _see_namespaces(self) -> None:
        if [*self._backend.namespaces()] != sorted({entry.namespace for entry in self._entries.values()}):
            self.lacking.append("namespaces")

    def _search(self, scope: Scope, mode: Any, number: int) -> None:
        inside = self._inside(scope)
        wanted = self._entries[inside[number % len(inside)]]
        hits = self._backend.search(Query(wanted.content[:300], scope=scope, mode=mode, limit=5))
        self._see(mode, [hit.entry for hit in hits])
        for hit in hits:
            if hit.entry.namespace != scope.namespace:
                self.broken.append(f"{mode} left its namespace")
            if hit.span and (hit.entry.id, *hit.span) not in self._spans:
                self.broken.append(f"{mode} gave the span {hit.span} of {hit.entry.id}")
        if wanted.id not in [hit.entry.id for hit in hits] and not hits.warnings:
            self.lacking.append(f"{mode}: {wanted.id}")

    def _update(self, entry_id: str) -> None:
        changed = {"title": "another title"}
        try:
            entry = self._backend.update(entry_id, changed)
        except NotFound:
            self.lacking.append("update")
            return
        former = self._entries[entry_id]
        if plain(entry) != plain(replace(former, **changed, version=entry.version, updated_at=entry.updated_at)):
            self.broken.append(f"update gave {entry}, and stored was {former}")
        self._history[entry_id].append(plain(former))
        self._entries[entry_id] = entry

    def _remove(self, what: Scope | str) -> None:
        """A damaged index may name too few; what is gone is not asked for any more."""
        self._backend.remove(what if isinstance(what, Scope) else [what])
        for entry_id, entry in [*self._entries.items()]:
            gone = entry_id == what if isinstance(what, str) else entry.user_id == what.user_id
            if gone:
                self._gone[entry_id] = self._entries.pop(entry_id)

    def _store(self, entries: list[MemoryEntry]) -> None:
        for entry in self._backend.store(entries):
            self._entries[entry.id] = entry
            self._history[entry.id] = []
            self._spans.add((entry.id, 0, len(entry.content)))


def plain(entry: MemoryEntry) -> MemoryEntry:
    """Without what counts, which changes in place and has no checksum."""
    return replace(entry, **dict.fromkeys(COUNTED))  # type: ignore[arg-type]


def found_by_looking(path: Path) -> str:
    """What somebody finds who looks for damage in a database; "" for nothing."""
    connection = sqlite3.connect(path, factory=SqliteConnection)
    connection.row_factory = sqlite3.Row
    try:
        told = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        if told != ["ok"]:
            return str(told[0])
        if connection.execute("PRAGMA foreign_key_check").fetchone():
            return "a row refers to one that is not there"
        for look in damaged_rows.ALL:
            for found in look(connection):
                return str(found)
        return ""
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return str(error)
    finally:
        connection.close()


def ask(folder: Path, truth: dict[str, Any], seed: int) -> dict[str, Any]:
    """One damage, and what became of it. Every second store keeps its indexes; the others build them anew."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        store, apart = Path(temporary) / "store", Path(temporary) / "apart.sqlite3"
        if seed % 2:
            shutil.copytree(folder / "store", store)
        else:
            store.mkdir()
            shutil.copy(folder / "store" / DATABASE_FILE, store)
        how = damage(store / DATABASE_FILE, chance)
        shutil.copy(store / DATABASE_FILE, apart)
        told = {"seed": seed, "how": how, "found": found_by_looking(apart)}
        return {**told, **outcome(store, truth, chance)}


def outcome(store: Path, truth: dict[str, Any], chance: random.Random) -> dict[str, list[str]]:
    try:
        asking = Asking(store, truth)
    except StoreError as error:
        broken = [] if any(words in str(error) for words in TO_DO) else [f"opening does not say what to do: {error}"]
        return {"broken": broken, "raised": [str(error)], "lacking": []}
    except Exception:
        return {"broken": [f"opening: {traceback.format_exc(limit=-6)}"], "raised": [], "lacking": []}
    asking.everything()
    asking.change(chance)
    asking.everything()
    asking.close()
    return {"broken": asking.broken[:5], "raised": asking.raised[:3], "lacking": asking.lacking[:3]}


if __name__ == "__main__":
    place = Path(sys.argv[2])
    if sys.argv[1] == "build":
        build(place)
    else:
        known = json.loads((place / "truth.json").read_text())
        for number in map(int, sys.argv[3:]):
            print(json.dumps(ask(place, known, number)), flush=True)
