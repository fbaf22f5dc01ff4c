"""The word index: tantivy (BM25) over our own terms, a follower of the change feed on disk.

A manifest beside the index says up to which `seq` it has followed. Any process brings the index up to date under one
lock; an index that cannot be read, does not fit its manifest, or is of another store or another analysis, is set aside
and rebuilt from the records. A few changes of a large store wait in memory for the next commit (`recent`): every
process reads them from the records for itself, and whoever has gathered enough writes them, in the background.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tantivy
from filelock import FileLock, Timeout

from agentformer.errors import AgentFormerError, StoreFull
from agentformer.index.words.analyzers import Sharing
from agentformer.index.words.fields import ANALYSIS, BOOSTS, AnalyzedEntry, schema
from agentformer.index.words.memtable import Change, Memtable
from agentformer.index.words.query import Stored, View, WordHits
from agentformer.index.words.writer import (
    Unfinished,
    broken,
    delete_unlisted,
    read_manifest,
    told,
    write_manifest,
    writer_of,
)
from agentformer.records import entries as records
from agentformer.records.database import Database
from agentformer.records.files import delete
from agentformer.records.neighbours import said_around
from agentformer.text.analyzers import PLAIN, Analyzers
from agentformer.types import UNSEARCHED_KINDS

__all__ = ["BOOSTS", "WordHits", "WordIndex"]

log = logging.getLogger("agentformer")

_HEAP = 64_000_000  # bytes that a writer gathers before it writes a segment
_GROUP = 2_000  # entries read from the records at a time
_RECENT_SHARE = 0.02  # of an index's entries that may wait in memory: so few do not change how rare a word is
_RECENT = 1_000  # and at most so many, since each of them is looked at by each search
_GATHERED = 250  # so many are worth a commit in the background
_UNCHANGED = -1  # in place of the change that an entry is of, where it has not changed and is analysed again


class WordIndex:
    """BM25 search over entries. Thread-safe, and safe with other processes on the same folder."""

    def __init__(self, folder: Path, store_id: str, analyzers: Analyzers = PLAIN) -> None:
        self._folder = folder
        self._identity = {"store": store_id, "analysis": ANALYSIS}
        self._analysers = analyzers
        self._sharing = Sharing(analyzers)
        self._writing = threading.RLock()  # of the index on disk within this process; held while it is written
        self._lock = threading.RLock()  # of what searches see, held for moments
        self._index: Any = None
        self._applied = -1
        self._point = ""  # the history's token at `_applied`
        self._stored: Stored  # the index as it was at `_applied`
        self._view: View | None = None
        self._seen = -1  # up to where `_view` has followed, and the token there
        self._seen_point = ""
        self._writer: threading.Thread | None = None
        self._closed = False

    def refresh(self, database: Database, newest: int = -1) -> None:
        """Follow the records up to the newest acknowledged change, which `newest` is where that was just read. Raises
        `StoreFull` or another `StoreError`."""
        with self._lock:
            if (self._view is not None and self._seen == newest) or self._up_to_date(database):
                return
        self._catch_up(database, wait=True)

    def followed(self, database: Database, newest: int = -1) -> View:
        """What a search sees after `refresh`. It stays as it is, also where another thread discards the index."""
        while True:
            self.refresh(database, newest)
            with self._lock:
                if self._view is not None:
                    return self._view

    def flush(self, database: Database) -> None:
        """Follow the records on disk too, and wait for it."""
        self._catch_up(database, wait=True)

    def discard(self) -> None:
        """Delete the index: what was removed from it stays readable in its segments until they are merged. The
        next search builds it anew from the records. Raises `OSError`."""
        with self._writing, FileLock(self._lock_file()):
            with self._lock:
                self._index, self._applied, self._point = None, -1, ""
                self._view, self._seen = None, -1
            for folder in (self._folder, self._aside()):
                delete(folder)

    def close(self, database: Database) -> None:
        """Wait for what is being written, begin nothing more in the background, and write what waits in memory."""
        with self._lock:
            self._closed = True
            writer = self._writer
        if writer is not None:
            writer.join()
        if self._view is not None and len(self._view.recent):
            self._catch_up(database, wait=False)

    def _up_to_date(self, database: Database) -> bool:
        """Is the view, with what has changed in the records taken into memory? Where that is too much, it is not."""
        with database.reading() as connection:
            newest = records.last_change(connection)
            if self._view is None or self._seen == newest:
                return self._view is not None
            if newest < self._seen or records.point(connection, self._seen) != self._seen_point:
                return False  # the records are another copy, put back in place
            room = min(_RECENT, int(self._view.stored.entries * _RECENT_SHARE))
            changes = [Change(*row) for row in records.changes_since(connection, self._seen, room + 1)]
            if len(changes) + len(self._view.recent) > room:
                return False
            found = _analysed(connection, [change.num for change in changes], self._analysers)
            self._view = View(self._view.stored, self._view.recent.with_changes(changes, found))
            self._seen, self._seen_point = newest, records.point(connection, newest)
        if len(self._view.recent) >= min(_GATHERED, room // 2 + 1):
            self._write_soon(database)
        return True

    def _write_soon(self, database: Database) -> None:
        if self._closed or (self._writer is not None and self._writer.is_alive()):
            return
        self._writer = threading.Thread(target=self._write_now, args=(database,), name="agentformer-words", daemon=True)
        self._writer.start()

    def _write_now(self, database: Database) -> None:
        try:
            self._catch_up(database, wait=False)
        except (AgentFormerError, OSError, ValueError) as error:
            log.warning("the word index was not written, and is at the next change: %s", error)

    def _catch_up(self, database: Database, *, wait: bool) -> None:
        """Follow the records on disk. Without `wait`, not while another process does. Raises `StoreError`."""
        try:
            self._catch_up_alone(database, wait)
        except AgentFormerError:
            raise
        except BaseException as error:
            if not broken(error):
                raise
            with self._writing:
                self._index = None  # opened anew, and looked at closely, by the next one
            raise told(error, self._folder) from error

    def _catch_up_alone(self, database: Database, wait: bool) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with self._writing:
            try:
                lock = FileLock(self._lock_file()).acquire(timeout=-1 if wait else 0)
            except Timeout:
                return
            with lock:
                self._open()
                with database.reading() as connection:
                    newest = records.last_change(connection)
                    known = records.point(connection, self._applied)
                    self._forget_another_history(connection)
                if self._applied and known != self._point:  # the records are another copy, put back in place
                    self._begin_anew()
                lacking = [] if database.read_only else self._lacking()
                if self._applied < newest or lacking:
                    self._follow(database, lacking)
                self._show()

    def _lacking(self) -> list[int]:
        return self._sharing.lacking(self._index.searcher(), self._index.schema)

    def _forget_another_history(self, connection: sqlite3.Connection) -> None:
        """Let go of what is in memory where the records are another copy now."""
        with self._lock:
            if self._view and records.point(connection, self._seen) != self._seen_point:
                self._view, self._seen = None, -1

    def _open(self) -> None:
        """Open or reload what is on disk, or begin anew when it is not ours or cannot be read."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            state = read_manifest(self._folder, verify=self._index is None)
            if self._index is None:
                self._index = tantivy.Index(schema(), path=str(self._folder))
            self._index.reload()
            self._adopt(state or {**self._identity, "seq": 0, "point": ""})
        except Unfinished:
            delete(self._folder)
            self._begin_anew()
        except BaseException as error:
            if not broken(error) or isinstance(told(error, self._folder), StoreFull):
                raise  # no room is no damage, and must not cost the index
            log.warning("the word index is rebuilt from the records: %s", error)
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._index = None
        self._set_aside()
        self._folder.mkdir(parents=True)
        self._index = tantivy.Index(schema(), path=str(self._folder))
        self._adopt({**self._identity, "seq": 0, "point": ""})

    def _adopt(self, state: Mapping[str, Any]) -> None:
        if {key: state.get(key) for key in self._identity} != self._identity:
            raise ValueError("the word index is of another store or of another analysis")
        self._applied, self._point = int(state["seq"]), str(state["point"])
        self._stored = Stored(self._index.searcher(), self._index.schema, self._analysers)

    def _show(self) -> None:
        """Let searches see the index as it is on disk, with what is newer in memory."""
        with self._lock:
            if self._view is None or self._seen <= self._applied:
                self._view, self._seen, self._seen_point = View(self._stored, Memtable()), self._applied, self._point
            else:
                self._view = View(self._stored, self._view.recent.after(self._applied))

    def _set_aside(self) -> None:
        if os.path.lexists(self._folder):
            aside = self._aside()
            delete(aside)
            self._folder.rename(aside)

    def _aside(self) -> Path:
        return self._folder.with_name(self._folder.name + ".damaged")

    def _lock_file(self) -> str:
        return str(self._folder) + ".lock"

    def _follow(self, database: Database, lacking: Sequence[int] = ()) -> None:
        """Write what has changed, and anew the entries that are `lacking` what an analyzer of this process tells."""
        delete_unlisted(self._folder)
        with writer_of(self._index, self._folder, _HEAP) as writer, database.reading() as connection:
            newest = records.last_change(connection)
            state = {**self._identity, "seq": newest, "point": records.point(connection, newest)}
            changes = [Change(*row) for row in records.changes_since(connection, self._applied)]
            changed = {change.num for change in changes}
            changes += (Change(_UNCHANGED, num) for num in lacking if num not in changed)
            for i in range(0, len(changes), _GROUP):
                self._write(connection, writer, changes[i : i + _GROUP])
        write_manifest(self._folder, state)
        self._index.reload()
        self._adopt(state)

    def _write(self, connection: sqlite3.Connection, writer: Any, changes: Sequence[Change]) -> None:
        view = self._view
        known = {change.num: view.recent.analysed(change) if view else None for change in changes}
        found = _analysed(connection, [num for num, analysed in known.items() if analysed is None], self._analysers)
        for _, num in changes:
            if self._applied:
                writer.delete_documents_by_query(tantivy.Query.term_query(self._index.schema, "num", num))
            analysed = known[num] or found.get(num)
            if analysed is not None:
                writer.add_document(analysed.document())


def _analysed(connection: sqlite3.Connection, nums: Sequence[int], analyzers: Analyzers) -> dict[int, AnalyzedEntry]:
    """Those of these entries that are there and searched."""
    return {
        num: AnalyzedEntry.of(num, entry, analyzers, said_around(connection, entry))
        for num, entry in records.by_num(connection, nums).items()
        if entry.kind not in UNSEARCHED_KINDS
    }
