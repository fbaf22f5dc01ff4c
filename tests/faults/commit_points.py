"""Every place at which a process may end between two effects on a disk, counted as it is reached.

`Points.install` puts itself around what has these effects: SQLite's statements, renames, syncs, deletions, file locks,
tantivy's commits, the pieces of a vector snapshot, the steps of a training. A process told to die at the n-th point
kills its whole group there with SIGKILL.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import filelock

from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors import training
from agentformer.index.words import writer as word_writing

_READING = ("SELECT", "WITH", "EXPLAIN", "PRAGMA", "BEGIN ", "BEGIN")
_CHANGING = ("BEGIN IMMEDIATE", "PRAGMA USER_VERSION =", "PRAGMA WAL_CHECKPOINT", "PRAGMA JOURNAL_MODE")


class Points:
    """Counts points; dies at the one with the number `die_at`. `committed` is called after each COMMIT.

    The count is the first number of `shared`, memory that forks of this process have together.
    """

    def __init__(
        self, die_at: int, told: Callable[[str], None], committed: Callable[[], None], shared: memoryview
    ) -> None:
        self._die_at = die_at
        self._told = told
        self._committed = committed
        self._shared = shared
        self._lock = threading.RLock()
        self._looking = threading.local()
        self.seen: set[str] = set()  # the kinds that this process came to

    @property
    def count(self) -> int:
        return int(self._shared[0])

    @contextmanager
    def looking(self) -> Iterator[None]:
        """What this thread does meanwhile is no part of the work."""
        self._looking.now = True
        try:
            yield
        finally:
            self._looking.now = False

    def reach(self, name: str) -> None:
        if getattr(self._looking, "now", False):
            return
        with self._lock:
            if self.count == self._die_at:
                self._told(name)
                os.killpg(os.getpgrp(), signal.SIGKILL)
            self._shared[0] += 1
            self.seen.add(name)
            if name == "after COMMIT":
                self._committed()

    def install(self) -> None:
        """In this process, for good."""
        for module, name in ((os, "replace"), (os, "rename"), (os, "unlink"), (os, "fsync"), (shutil, "rmtree")):
            self._around(module, name, f"{name} of a file")
        self._around(filelock.BaseFileLock, "acquire", "file lock")
        self._around(snapshots._HashingWriter, "write", "piece of a vector snapshot")
        self._around(training, "_add_to_lists", "slice of a training")
        self._statements()
        self._words()

    def _around(self, owner: Any, name: str, told: str) -> None:
        real = getattr(owner, name)

        def reached(*arguments: Any, **options: Any) -> Any:
            self.reach(told)
            return real(*arguments, **options)

        setattr(owner, name, reached)

    def _statements(self) -> None:
        connect = sqlite3.connect

        def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
            kind = _pointed(options.pop("factory", sqlite3.Connection), self)
            return connect(*arguments, factory=kind, **options)

        sqlite3.connect = connected  # type: ignore[assignment]

    def reach_sql(self, sql: str) -> None:
        statement = " ".join(sql.split()).upper()
        if statement == "COMMIT":
            self.reach("before COMMIT")
        elif statement.startswith(_CHANGING) or not statement.startswith(_READING):
            self.reach("statement of a transaction")

    def _words(self) -> None:
        points, opened = self, word_writing._open_writer

        class Writer:
            def __init__(self, writer: Any) -> None:
                self._writer = writer

            def commit(self) -> None:
                points.reach("before a commit of words")
                self._writer.commit()
                points.reach("after a commit of words")

            def wait_merging_threads(self) -> None:
                self._writer.wait_merging_threads()
                points.reach("after a merge of words")

            def __getattr__(self, name: str) -> Any:
                return getattr(self._writer, name)

        word_writing._open_writer = lambda *rest: Writer(opened(*rest))


def _pointed(kind: type[sqlite3.Connection], points: Points) -> type[sqlite3.Connection]:
    """Connections of this kind, whose statements are points."""

    class Pointed(kind):  # type: ignore[valid-type, misc]
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            points.reach_sql(sql)
            cursor: sqlite3.Cursor = super().execute(sql, *rest)
            if sql == "COMMIT":
                points.reach("after COMMIT")
            return cursor

        def executemany(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            points.reach_sql(sql)
            cursor: sqlite3.Cursor = super().executemany(sql, *rest)
            return cursor

    return Pointed
