"""The word index of a store, which finds entries by the words of a query. It ranks entries by BM25, using tantivy with
the terms of `text.analysis`. It is stored on disk and updated with the changes of the records, which are the database
of the entries.

A manifest file contains the number of the last change (`seq`) that the index contains. Any process can update the
index; a lock file lets only one process write at a time. An index is invalid if it cannot be read, does not match its
manifest, or was made for another store or by another version of the analysis. An invalid index is renamed, and a new
index is built from the records.

In a large store, a few changes are kept in memory (`Memtable`) and are written together later. Each process reads these
changes from the records. When a process has collected enough changes, it writes them to the index in a background
thread.

After many changes, a search waits for this thread, but not longer than `_WAIT_SECONDS`. Then it reads the index as it
is, and the newest of the changes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import tantivy
from filelock import Timeout

from agentformer.errors import AgentFormerError, StoreBusy, StoreFull
from agentformer.index import entry_properties
from agentformer.index.words.fields import ANALYSIS, AnalyzedEntry, SharedAnalyzers, schema
from agentformer.index.words.query import Change, CommittedIndex, Memtable, View
from agentformer.index.words.writer import (
    UncommittedManifest,
    delete_unlisted,
    index_writer,
    is_commit_due,
    is_index_failure,
    memtable_room,
    read_manifest,
    store_error,
    write_manifest,
)
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.change_feed import neighbor_texts
from agentformer.records.integrity.files import delete
from agentformer.settings.access import file_lock, make_folder
from agentformer.text.language_extras import PLAIN, Analyzers
from agentformer.types import UNSEARCHED_KINDS, Connection, RecordStore

log = logging.getLogger("agentformer")

_HEAP = 64_000_000  # number of bytes that a writer collects before it writes a segment
_BATCH = 250  # entries read from the records at a time; with more of them, collections of garbage visit more objects
# Maximum number of changes in one commit. A store with millions of entries needs many commits, so that memory and read
# transactions stay small.
_STEP = 100_000
_WAIT_SECONDS = 10.0  # a search waits so long for an update of the index
_SCAN_SECONDS = 2.0  # then it analyzes the newest changes for so long
_MAX_SCANNED = 1_000  # and at most so many
_LOCK_SECONDS = 1.0  # a thread that waits for the lock of the index looks so often whether the index was closed
_UNCHANGED = -1  # used as the change number of an entry that is analyzed again, but has not changed


class _Update(threading.Thread):
    """A background thread that updates the index. `error` is the error that ended it, or None."""

    def __init__(self, update: Callable[[], None]) -> None:
        super().__init__(name="agentformer-words", daemon=True)
        self._update = update
        self.error: BaseException | None = None

    def run(self) -> None:
        """Apply the update, and keep its error."""
        try:
            self._update()
        except BaseException as error:  # noqa: BLE001 - the search that waits raises it
            self.error = error


class WordIndex:
    """The word index of a store, for searches by BM25. Thread-safe. Several processes may use the same folder."""

    def __init__(self, folder: Path, store_id: str, analyzers: Analyzers = PLAIN) -> None:
        self._folder = folder
        self._aside = folder.with_name(folder.name + ".damaged")
        self._lock_file = str(folder) + ".lock"
        self._store_id = store_id
        self._analyzers = analyzers
        self._shared_analyzers = SharedAnalyzers(analyzers)
        self._writing = threading.RLock()  # protects the index on disk within this process; held during a commit
        self._lock = threading.RLock()  # protects the state that searches see; never held for long
        self._index: Any = None
        self._applied = -1
        self._point = ""  # the token of the change `_applied`
        self._highest = 0  # highest number of an entry that was ever in the index
        self._committed: CommittedIndex  # the index as it was at `_applied`
        self._view: View | None = None
        self._seen = -1  # the last change in `_view`, and the token of this change
        self._seen_point = ""
        self._writer: _Update | None = None
        self._scanning = threading.Lock()  # protects `_scanned`
        self._scanned: tuple[int, View | None] = -1, None  # the newest change in the last `_partial_view`, and the view
        self._closed = False

    def view(self, database: RecordStore, newest: int = -1) -> View:
        """Return the state of the index for one search, after all committed changes were applied. If this takes longer
        than `_WAIT_SECONDS`, only the newest of them were applied, and `View.missing` counts the others. The returned
        state never changes, even if another thread deletes the index. `newest` is the number of the newest change if
        the caller knows it. If this is also the last change in the index, the records are not read; with -1, they are
        always read. Raises `StoreFull` if the index cannot be written, or another `StoreError`."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            with self._lock:
                if (self._view is not None and self._seen == newest) or self._up_to_date(database):
                    assert self._view is not None
                    return self._view
                running = self._writer if self._writer is not None and self._writer.is_alive() else None
                writer = running or self._start(partial(self._update, database, wait=True))
            if writer is None:  # the index is closed, or no thread can be started
                self._update(database, wait=True)
            else:
                writer.join(max(0.0, deadline - time.monotonic()))
                if writer.is_alive():
                    return self._partial_view(database)
                if writer is running:
                    continue  # it may have started before the newest change
                if writer.error is not None:
                    raise writer.error
            with self._lock:
                if self._view is not None:
                    return self._view

    def flush(self, database: RecordStore) -> None:
        """Write all changes of the records to the index on disk. The call returns when they are written."""
        self._update(database, wait=True)

    def discard(self) -> None:
        """Delete the index files and the state in memory, because the files may still contain the words of removed
        entries. The next search rebuilds the index from the records. Raises `OSError` if a file cannot be deleted."""
        with self._writing, file_lock(self._lock_file):
            with self._lock:
                self._index, self._applied, self._point = None, -1, ""
                self._view, self._seen = None, -1
            for folder in (self._folder, self._aside):
                delete(folder)

    def close(self, database: RecordStore) -> None:
        """Wait for the background thread, write the changes in memory, and start no background thread from now on."""
        with self._lock:
            self._closed = True
            writer = self._writer
        if writer is not None:
            writer.join()
        if self._view is not None and len(self._view.memtable):
            self._update(database, wait=False)
        with self._writing:
            self._index = None  # ends tantivy's thread that watches the folder

    def _up_to_date(self, database: RecordStore) -> bool:
        """Add the newest changes of the records to the state in memory. Return False if the index on disk must be
        updated first, because there are too many changes or no state in memory."""
        with database.reading() as connection:
            newest = change_feed.last_seq(connection)
            if self._view is None or self._seen == newest:
                return self._view is not None
            if newest < self._seen or change_feed.token_at(connection, self._seen) != self._seen_point:
                return False  # a backup of the records was restored in place
            room = memtable_room(self._view.committed.entries)
            changes = [Change(*row) for row in change_feed.since(connection, self._seen, room + 1)]
            if len(changes) + len(self._view.memtable) > room:
                return False
            analyzed = _analyze(connection, [change.num for change in changes], self._analyzers)
            self._view = View(self._view.committed, self._view.memtable.with_changes(changes, analyzed))
            self._seen, self._seen_point = newest, change_feed.token_at(connection, newest)
        if is_commit_due(len(self._view.memtable), room) and (self._writer is None or not self._writer.is_alive()):
            self._start(partial(self._commit, database))
        return True

    def _partial_view(self, database: RecordStore) -> View:
        """Return the state of the index without waiting for its update. It contains the newest changes, as far as they
        can be analyzed in `_SCAN_SECONDS`."""
        with self._scanning:
            until = time.monotonic() + _SCAN_SECONDS
            with self._lock:
                base, seen, point = self._view, max(self._seen, 0), self._seen_point
            with database.reading() as connection:
                newest = change_feed.last_seq(connection)
                if base is None or newest < seen or change_feed.token_at(connection, seen) != point:
                    empty = tantivy.Index(schema())  # in memory
                    base, seen = View(CommittedIndex(empty.searcher(), empty.schema, self._analyzers), Memtable()), 0
                former = self._scanned[1]
                if former is not None and self._scanned[0] == newest and former.committed is base.committed:
                    return former
                changes = [Change(*row) for row in change_feed.since(connection, max(seen, newest - _MAX_SCANNED))]
                analyzed: dict[int, AnalyzedEntry] = {}
                first = len(changes)
                while first and time.monotonic() < until:
                    first -= 1
                    change = changes[first]
                    known = former.memtable.analyzed(change) if former else None
                    analyzed |= {change.num: known} if known else _analyze(connection, [change.num], self._analyzers)
            memtable = base.memtable.after(-1).with_changes(changes[first:], analyzed)
            missing = max(0, newest - seen - len(changes[first:]))
            log.warning("A search did not wait longer for the word index, in which %d changes are missing", missing)
            view = View(base.committed, memtable, missing)
            self._scanned = newest, view
            return view

    def _start(self, update: Callable[[], None]) -> _Update | None:
        """Run `update` in a background thread. Return None if the index is closed, or no thread can be started."""
        writer = _Update(update)
        try:
            if not self._closed:
                writer.start()
                self._writer = writer
                return writer
        except RuntimeError:  # the interpreter exits, or the process has too many threads
            pass
        return None

    def _commit(self, database: RecordStore) -> None:
        try:
            self._update(database, wait=False)
        except (AgentFormerError, OSError, ValueError) as error:
            log.warning("The word index could not be written; it is written again after the next change: %s", error)

    def _update(self, database: RecordStore, *, wait: bool) -> None:
        """Write the newest changes to the index on disk. If another process is writing the index, wait for it if `wait`
        is True, otherwise do nothing. Raises `StoreError` if the index cannot be written."""
        try:
            self._update_locked(database, wait)
        except AgentFormerError:
            raise
        except BaseException as error:
            if not is_index_failure(error):
                raise
            with self._writing:
                self._index = None  # the next update opens it again and verifies all files
            raise store_error(error, self._folder) from error

    def _update_locked(self, database: RecordStore, wait: bool) -> None:
        make_folder(self._folder.parent)
        with self._writing:
            lock = self._index_lock(wait)
            if lock is None:
                return
            with lock:
                self._open()
                with database.reading() as connection:
                    newest = change_feed.last_seq(connection)
                    same_history = not self._applied or change_feed.token_at(connection, self._applied) == self._point
                    with self._lock:
                        if self._view and change_feed.token_at(connection, self._seen) != self._seen_point:
                            self._view, self._seen = None, -1
                if not same_history:  # a backup of the records was restored in place
                    self._create()
                self._publish()  # for searches that do not wait for the newest changes
                outdated: list[int] = []
                if not database.read_only:
                    outdated = self._shared_analyzers.outdated(self._index.searcher(), self._index.schema)
                if self._applied < newest or outdated:
                    self._write_changes(database, outdated)
                self._publish()

    def _index_lock(self, wait: bool) -> AbstractContextManager[Any] | None:
        """Return the acquired lock of the index folder. If another process holds it, wait for it if `wait` is True,
        otherwise return None. Raises `StoreBusy` if the index is closed meanwhile."""
        while True:
            try:
                return file_lock(self._lock_file).acquire(timeout=_LOCK_SECONDS if wait else 0)
            except Timeout:
                if not wait:
                    return None
                if self._closed:
                    raise StoreBusy(f"another process is writing the word index {self._folder}; try again") from None

    def _open(self) -> None:
        """Open the index on disk. If it is already open, read its newest commit. If the index cannot be read or belongs
        to another store, replace it with an empty index."""
        try:
            make_folder(self._folder)
            state = read_manifest(self._folder, verify=self._index is None)
            if self._index is None:
                self._index = tantivy.Index(schema(), path=str(self._folder))
            self._index.reload()
            self._adopt(state or self._state(0, "", 0))
        except UncommittedManifest:
            delete(self._folder)
            self._create()
        except BaseException as error:
            if not is_index_failure(error) or isinstance(store_error(error, self._folder), (StoreFull, StoreBusy)):
                raise  # a full disk or too many open files are not damage, so the index must not be deleted
            log.warning("The word index is invalid and is rebuilt from the records: %s", error)
            self._create()

    def _create(self) -> None:
        """Rename the folder of the current index, and create an empty index."""
        self._index = None
        if os.path.lexists(self._folder):
            delete(self._aside)
            self._folder.rename(self._aside)
        make_folder(self._folder, new=True)
        self._index = tantivy.Index(schema(), path=str(self._folder))
        self._adopt(self._state(0, "", 0))

    def _state(self, seq: int, point: str, highest: int) -> dict[str, Any]:
        return {"store": self._store_id, "analysis": ANALYSIS, "seq": seq, "point": point, "highest": highest}

    def _adopt(self, state: Mapping[str, Any]) -> None:
        if state.get("store") != self._store_id:
            raise ValueError("the word index belongs to another store")
        if state.get("analysis") != ANALYSIS:
            raise ValueError("the word index was written by another version of agentformer")
        self._applied, self._point = int(state["seq"]), str(state["point"])
        self._highest = int(state["highest"])
        self._committed = CommittedIndex(self._index.searcher(), self._index.schema, self._analyzers)

    def _publish(self) -> None:
        """Let searches use the newest commit on disk. Changes that are newer than this commit stay in memory."""
        with self._lock:
            if self._view is None or self._seen <= self._applied:
                self._view = View(self._committed, Memtable())
                self._seen, self._seen_point = self._applied, self._point
            else:
                self._view = View(self._committed, self._view.memtable.after(self._applied))

    def _write_changes(self, database: RecordStore, outdated: Sequence[int]) -> None:
        """Write the changes of the records to the index, and write the entries `outdated` again. Each step is one
        commit."""
        newest = 0
        while True:
            delete_unlisted(self._folder)
            with index_writer(self._index, self._folder, _HEAP) as writer:
                with database.reading() as connection:
                    newest = newest or change_feed.last_seq(connection)
                    reached = change_feed.step(connection, self._applied, _STEP)
                    point = change_feed.token_at(connection, reached)
                    changes = [Change(*row) for row in change_feed.since(connection, self._applied, until=reached)]
                changed = {change.num for change in changes}
                changes += (Change(_UNCHANGED, num) for num in outdated if num not in changed)
                # One transaction for each batch, so that writers can empty their log meanwhile. If an entry changes
                # before its batch is written, the later change writes the entry again.
                for start in range(0, len(changes), _BATCH):
                    with database.reading() as connection:
                        self._write_batch(connection, writer, changes[start : start + _BATCH])
            state = self._state(reached, point, max(self._highest, *changed, 0))
            write_manifest(self._folder, state)
            self._index.reload()
            self._adopt(state)
            outdated = ()
            if reached >= newest:
                return

    def _write_batch(self, connection: Connection, writer: Any, changes: Sequence[Change]) -> None:
        """Write the entries of these changes. An entry with a number above `_highest` is not in the index, so it need
        not be deleted first."""
        view = self._view
        entries = {change.num: view.memtable.analyzed(change) if view else None for change in changes}
        missing = [num for num, analyzed in entries.items() if analyzed is None]
        entries |= _analyze(connection, missing, self._analyzers)
        for _, num in changes:
            if num <= self._highest:
                writer.delete_documents_by_query(tantivy.Query.term_query(self._index.schema, "num", num))
            if (analyzed := entries[num]) is not None:
                writer.add_document(analyzed.document())


def _analyze(connection: Connection, nums: Sequence[int], analyzers: Analyzers) -> dict[int, AnalyzedEntry]:
    """Return the terms of the entries with these numbers, without entries that are missing or never searched."""
    derived = entry_properties.read(connection, nums)
    return {
        num: AnalyzedEntry.of(num, entry, analyzers, neighbor_texts(connection, entry), derived.get(num))
        for num, entry in records.by_num(connection, nums).items()
        if entry.kind not in UNSEARCHED_KINDS
    }
