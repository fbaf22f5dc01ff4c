"""What the kill tests' works are made of: a `Work` is steps in a fixed order, a `Desk` what a step works with."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_load import Server

import agentformer.memory.backends.faiss.backend as faiss_backend
from agentformer.factory import AgentFormer, connect
from agentformer.index.vectors import IndexOptions
from agentformer.types import MemoryEntry, Scope

EVERYTHING = Scope(include_archived=True)


class Desk:
    """The store of one run. `points` goes into every process that writes."""

    def __init__(self, work: Work, folder: Path, install: Callable[[], None] = lambda: None) -> None:
        self.work = work
        self.folder = folder
        self._install = install
        self._af: AgentFormer | None = None
        self._server: Server | None = None
        if not work.serves:
            install()
        if work.train_at:
            plan = functools.partial(IndexOptions, train_at=work.train_at, exact_rows=2, train_after=0.0)
            faiss_backend.IndexOptions = plan  # type: ignore[misc, assignment]

    def connect(self, folder: Path, **settings: Any) -> AgentFormer:
        quiet: dict[str, Any] = {"clean_every": 0, "lease_seconds": 1.0, "embed_retry_seconds": 0}
        own = {"backend": self.work.backend, "embedder": self.work.embedder}
        return connect(index_dir=folder / "index", upload_dir=folder / "uploads", **{**quiet, **own, **settings})

    @property
    def af(self) -> AgentFormer:
        if self._af is None:
            self._af = self.connect(self.folder)
        return self._af

    @property
    def server(self) -> Server:
        """`agentformer serve` in a process of this group, whose every process dies at a point, too."""
        if self._server is None:
            self._server = ForkedServer(self.folder, self._install)
        return self._server

    def find(self, content: str) -> MemoryEntry:
        """The oldest entry with this content."""
        entries = self.af.backend.list(EVERYTHING, limit=10_000)
        return next(entry for entry in entries if entry.content == content)

    def close(self) -> None:
        if self._af is not None:
            self._af.close()
            self._af = None
        if self._server is not None:
            assert self._server.end() == 0
            self._server = None


class ForkedServer(Server):
    """A server that is a fork of this process, which has imported everything already."""

    def __init__(self, folder: Path, install: Callable[[], None] = lambda: None) -> None:
        self.log = folder / "log.txt"
        reading, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _serve(folder, writing, self.log, install)
        os.close(writing)
        with os.fdopen(reading) as told:
            line = told.readline()
        assert "http://" in line, self.log.read_text()[-2000:]
        self.port = int(line.strip().rpartition(":")[2].split("/")[0])

    def end(self) -> int:
        os.kill(self._pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _serve(folder: Path, out: int, log: Path, install: Callable[[], None]) -> None:
    from agentformer.cli.group import main

    os.dup2(out, 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.stdout = os.fdopen(1, "w")
    where = ["--index-dir", f"{folder}/index", "--upload-dir", f"{folder}/uploads"]
    try:
        install()
        main(["serve", "--embedder", "hashing", "--port", "0", *where], standalone_mode=False)
    except SystemExit as end:
        os._exit(int(end.code or 0))
    os._exit(0)


Step = Callable[[Desk], object]


@dataclass(frozen=True)
class Work:
    """One write path: what is there before, and what is done."""

    name: str
    steps: tuple[Step, ...]
    before: Callable[[Desk], object] = lambda desk: None
    backend: str = "faiss"
    embedder: str = "hashing"
    train_at: int = 0  # rows from which on the vector index is trained; 0: as users have it
    serves: bool = False  # the work is done by a server, which goes on after it has answered
    damaged: bool = False  # until the work is done
    kills: int = 1  # in the normal suite
    parts: Mapping[int, int] = field(default_factory=dict)  # steps that are several transactions, and how many
