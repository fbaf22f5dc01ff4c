"""Works with a memory on a small disk that is full at one moment after the other, and looks each time at what is there.

    fill_disk.py FOLDER BACKEND ROOM...

For each room, in bytes, every way of writing is tried once with no more than that: it goes well, or it raises a
`StoreFull`. Then the room is given back; what was acknowledged is there, what was refused is not, and the next call of
the same memory works. At the end a new process' view, a memory that is opened anew, tells the same.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mounts import Ballast, mount

import agentformer
from agentformer.access.keys import KeyStore
from agentformer.errors import StoreError, StoreFull
from agentformer.jobs.queue import Jobs
from agentformer.jobs.store import Task
from agentformer.types import Scope

PAGE = "\n\n".join(f"Paragraph {n} of {{0}} tells of herons, tides and lanterns in room {n * 7}." for n in range(40))


class Diary:
    """A memory, and what it has acknowledged."""

    def __init__(self, disk: Path, backend: str) -> None:
        self.disk, self.backend = disk, backend
        self.ballast = Ballast(disk)
        self.contents: dict[str, str] = {}  # of every acknowledged entry, by id
        self.gone: set[str] = set()
        self.refused: list[str] = []  # contents of what was not acknowledged
        self.documents: dict[str, bytes] = {}
        self.keys: set[str] = set()
        self.jobs: set[str] = set()
        self.outcomes: dict[str, dict[str, int]] = {}
        self.number = 0
        (disk / "copy").mkdir()
        self.open("hashing:64")

    def open(self, embedder: str = "auto") -> None:
        self.memory = agentformer.connect(
            index_dir=self.disk / "index",
            upload_dir=self.disk / "uploads",
            backend=self.backend,
            embedder=embedder if self.backend == "faiss" else "hashing:64",
            cleanup_interval=0,
        )

    def fresh(self, what: str) -> str:
        self.number += 1
        return f"{what} number{self.number} stands by lantern{self.number}. " + "The tide comes in. " * 12

    def store(self) -> None:
        text = self.fresh("heron")
        self.refused.append(text)
        entry = self.memory.memory.store(text)
        self.contents[entry.id] = self.refused.pop()

    def store_many(self) -> None:
        texts = [self.fresh("bittern") for _ in range(30)]
        self.refused += texts
        for entry in self.memory.memory.store_many(texts):
            self.contents[entry.id] = entry.content
        del self.refused[-len(texts) :]

    def update(self) -> None:
        entry_id, text = next(iter(self.contents)), self.fresh("curlew")
        self.refused.append(text)
        self.memory.memory.update(entry_id, content=text)
        self.contents[entry_id] = self.refused.pop()

    def remove(self) -> None:
        entry_id = list(self.contents)[-1]
        self.memory.memory.remove(entry_id)
        del self.contents[entry_id]
        self.gone.add(entry_id)

    def search(self) -> None:
        assert self.memory.memory.search("heron by a lantern", limit=5)

    def words(self) -> None:
        """Writes the word index where there is one."""
        self.memory.memory.reindex()

    def upload(self) -> None:
        name = f"page{self.number}.txt"
        data = PAGE.format(self.fresh(name)).encode()
        document = self.memory.rag.upload(io.BytesIO(data), name=name)
        if document.status == "failed":
            raise StoreFull(document.reason)
        self.documents[document.id] = data

    def key(self) -> None:
        key, _ = KeyStore(self.disk / "index").make(f"key {self.number}")
        self.keys.add(key.id)

    def job(self) -> None:
        jobs = Jobs(self.disk / "index", self.disk / "uploads", _never, most=1000, days=1)
        jobs._worker.stop()  # they are to wait here
        try:
            data = b"x" * 20_000
            self.jobs.add(jobs.submit(Task("default", ("a.txt", "b.txt"), {}), [io.BytesIO(data)] * 2).id)
        finally:
            jobs.close()

    def reembed(self) -> None:
        to = "hashing:96" if self.number % 2 else "hashing:64"
        self.number += 1
        self.memory.reembed(to)

    def backup(self) -> None:
        target = self.disk / "copy"
        try:
            self.memory.backend.backup(target)
        except StoreFull:
            assert not list(target.iterdir()), "half a copy"
            raise
        self.ballast.free()
        copy = agentformer.connect(index_dir=target, upload_dir=target / "u", backend=self.backend, cleanup_interval=0)
        with copy:
            assert self.contents.items() <= {e.id: e.content for e in _all(copy, "fact")}.items()
        shutil.rmtree(target)
        target.mkdir()

    def close_and_open(self) -> None:
        self.memory.close()
        self.open()

    def ways(self) -> list[Callable[[], None]]:
        ways = [
            self.store,
            self.store_many,
            self.update,
            self.search,
            self.words,
            self.upload,
            self.key,
            self.job,
            self.backup,
        ]
        if self.backend == "faiss":
            ways += [self.reembed]
        return [*ways, self.remove, self.close_and_open]

    def tried(self, way: Callable[[], None], room: int, empty: Path | None = None) -> None:
        """Try it, with no more than so much room; `empty` is a folder that takes names away, to be emptied behind."""
        self.ballast.leave(room) if empty is None else None
        told = self.outcomes.setdefault(way.__name__, {})
        try:
            way()
            outcome = "done"
        except StoreError as error:
            assert isinstance(error, StoreFull), (way.__name__, room, error)
            assert "space" in str(error) or "room" in str(error), (way.__name__, room, error)
            outcome = "refused"
        finally:
            self.ballast.free()
            if empty is not None:
                shutil.rmtree(empty)
        told[outcome] = told.get(outcome, 0) + 1
        if way == self.close_and_open and outcome == "refused":
            self.open()
        self.check()

    def check(self) -> None:
        """All that was acknowledged, and nothing that was refused."""
        memory = self.memory
        found = {e.id: e.content for kind in ("fact", "note") for e in _all(memory, kind)}
        assert self.contents.items() <= found.items(), self.contents.items() - found.items()
        assert not self.gone & found.keys()
        assert not set(self.refused) & set(found.values()), "what was refused is there"
        documents = {document.id: document for document in memory.rag.documents()}
        for document_id, data in self.documents.items():
            assert documents[document_id].pages and memory.rag.original(document_id) == data
        assert len(documents) == len(self.documents), "a refused document is there"
        assert self.keys <= {key.id for key in KeyStore(self.disk / "index").all()}
        if self.contents:
            newest = list(self.contents.values())[-1]
            word = newest.split()[1]
            hits = memory.memory.search(word, limit=3, mode="lexical" if self.backend == "faiss" else "hybrid")
            assert [hit.entry.content for hit in hits][:1] == [newest], word


def _all(memory: Any, kind: str) -> list[Any]:
    return list(memory.backend.list(Scope(kinds=(kind,)), limit=100_000))


def _never(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("nobody works here")


def main(folder: str, backend: str, *rooms: str) -> None:
    disk = Path(folder)
    mount(disk, "24m")
    diary = Diary(disk, backend)
    diary.store_many()
    for room in rooms:
        for way in diary.ways():
            diary.tried(way, int(room))
    diary.memory.close()
    diary.open()
    diary.check()
    diary.memory.close()
    print(json.dumps(diary.outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
