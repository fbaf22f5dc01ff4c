"""The dense side of search: a `VectorIndex` that follows the records, grows in the background, and has a snapshot."""

from __future__ import annotations

import atexit
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from agentformer.index.files import described
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors import rows as stored
from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors.index import Image, VectorHits, VectorIndex
from agentformer.index.vectors.options import IndexOptions
from agentformer.index.vectors.rows import IntArray
from agentformer.index.vectors.training import Interrupted
from agentformer.records import entries as records
from agentformer.records.database import Database
from agentformer.records.spaces import active_space
from agentformer.types import Matrix, Vector

log = logging.getLogger("agentformer")

LOCK_FILE = "vectors.lock"
_BUSY_SECONDS = 60.0  # until somebody who found another process training looks again
_FAILED_SECONDS = 600.0  # until a training that failed is tried again, then twice as long
_ENDING_SECONDS = 10.0  # a thread looks at whether it is to end between slices of far less

Stopped = Callable[[], bool]


class BackgroundTrainer:
    """Does one piece of work at a time, in a thread that lives only as long as there is some. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._lock_file = folder / LOCK_FILE
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before = 0.0
        self._wait = _FAILED_SECONDS
        self.problem = ""  # what the last training failed of

    @property
    def at_work(self) -> bool:
        return self._thread is not None

    def begin(self, work: Callable[[Stopped], None]) -> None:
        """Do `work` in the background, unless some is being done, or was tried a short time ago."""
        if self._thread is not None or time.monotonic() < self._not_before:
            return
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, args=[work], name="agentformer-index", daemon=True)
                atexit.register(self.close)  # a daemon thread must not compute while the interpreter goes
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system has no thread to give; the search that asked goes on
                    self._thread = None
                    self._failed(error)

    def wait(self) -> None:
        """Until nothing is being done."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """End the thread, between two slices of its work. Idempotent."""
        self._stopped.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_ENDING_SECONDS)

    def alone(self, seconds: float = 0.0) -> FileLock:
        """Held by who trains or writes a snapshot; raises `Timeout` where another one is at it for so long."""
        return FileLock(self._lock_file, timeout=seconds)

    def _run(self, work: Callable[[Stopped], None]) -> None:
        try:
            with self.alone():
                work(self._stopped.is_set)
            self.problem, self._wait = "", _FAILED_SECONDS
        except Interrupted:
            pass
        except Timeout:
            self._not_before = time.monotonic() + _BUSY_SECONDS
        except Exception as error:  # noqa: BLE001 - the index goes on as it is, whatever went wrong
            self._failed(error)
        finally:
            self._thread = None
            atexit.unregister(self.close)

    def _failed(self, error: Exception) -> None:
        if self._stopped.is_set():
            return
        if not self.problem:
            log.warning("training the vector index failed, searches go on as before: %s", _told(error))
        self.problem = _told(error)
        self._not_before = time.monotonic() + self._wait
        self._wait *= 2


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


log = logging.getLogger("agentformer")

_GROUP = 512  # changed entries that are applied in one step
_PATIENCE = 3.0  # seconds for another process's snapshot to be written before this one deletes it
# A snapshot is written when this share has changed since the last one, or always while the store is small:
# a single addition to a large store must not write gigabytes.
_SNAPSHOT_SHARE = 0.1
_SMALL = 20_000


class _Held(NamedTuple):
    """The index in memory, and the space of its vectors."""

    vectors: VectorIndex
    space: int


class VectorFollower:
    """Cosine search that sees every acknowledged change. Thread-safe."""

    def __init__(self, folder: Path, store_id: str, plan: IndexOptions | None = None) -> None:
        self._folder = folder
        self._store_id = store_id
        self._plan = plan or IndexOptions()
        self._growth = BackgroundTrainer(folder)
        self._following = threading.Lock()  # one thread follows the records; searches need it for nothing else
        self._held: _Held | None = None
        self._applied = 0
        self._point = ""  # the history's token at `_applied`
        self._saved_seq = -1
        self._unsaved = 0  # entries changed since the last snapshot
        self._trains_from = 0.0  # by the monotonic clock

    def __len__(self) -> int:
        return len(self._held.vectors) if self._held else 0

    @property
    def space(self) -> int:
        """The number of the space that it holds; 0 before the first refresh."""
        return self._held.space if self._held else 0

    def refresh(self, database: Database) -> None:
        """Follow the records up to the newest acknowledged change, in the space that is active now."""
        with database.reading() as connection:
            newest, space = records.last_change(connection), active_space(connection)
        if space is not None:
            self.follow(database, newest, space[0])

    def follow(self, database: Database, newest: int, space: int) -> None:
        """As `refresh`, for who has read the newest change and the active space already."""
        if self.space != space or self._applied < newest:
            with self._following, database.reading() as connection:
                newest, active = records.last_change(connection), active_space(connection)
                if active is not None:
                    self._follow(connection, newest, active[0], active[1].dimension)
        self._grow(database)

    def search(self, space: int, query: Vector, limit: int, allowed: ScopeMask) -> VectorHits | None:
        """What may be nearest to `query`, for `ranked`. None when the index is not of the `space` that the query was
        embedded for."""
        held = self._held
        if held is None or held.space != space:
            return None
        return held.vectors.search(query, limit, allowed)

    def save(self) -> None:
        """Write a snapshot if it would spare a later start enough work, and nobody else is writing one. Raises
        `OSError`."""
        with self._following:
            held = self._held
            if held is None or self._applied == self._saved_seq:
                return
            few = self._unsaved < len(held.vectors) * _SNAPSHOT_SHARE
            if few and len(held.vectors) > _SMALL and self._saved_seq >= 0:
                return
            with suppress(Timeout), self._growth.alone(), held.vectors.still() as image:
                self._write(image, held.space, self._applied, self._point)
                self._saved_seq, self._unsaved = self._applied, 0

    def discard(self) -> None:
        """Delete the snapshot: it holds what was in the index once. Raises `OSError`; it is a `Timeout` where another
        one trains or writes a snapshot, who may put a file there that was begun before."""
        with self._following:
            self._saved_seq = -1
            snapshots.discard(self._folder)
            with self._growth.alone(0.0 if self._growth.at_work else _PATIENCE):
                snapshots.discard(self._folder)

    def forget(self) -> None:
        """Let go of what is in memory; the next search reads it anew."""
        with self._following:
            self._held, self._applied, self._point = None, 0, ""

    def status(self) -> dict[str, Any]:
        """For a person or a monitor, as JSON values: the index in memory, or what its snapshot says of itself."""
        held = self._held
        about = {**held.vectors.status(), "in_memory": True} if held else described(self._folder)
        return {
            **about,
            "training": self._growth.at_work,
            "problem": self._growth.problem or None,
        }

    def settle(self, database: Database) -> None:
        """Train now what is due, and wait for it."""
        self.refresh(database)
        self._trains_from = 0.0
        self._grow(database)
        self._growth.wait()

    def close(self) -> None:
        """End what goes on in the background. Idempotent."""
        self._growth.close()

    def _follow(self, connection: sqlite3.Connection, newest: int, space: int, dimension: int) -> None:
        held = self._held
        if held is None or held.space != space:
            held = self._begin(connection, space, dimension)
            late = stored.entries_above(connection, space, held.vectors.newest_window) if self._applied else []
        elif self._applied >= newest:
            return
        else:
            late = []
        if self._applied == 0 and len(held.vectors) == 0:
            for part in stored.read_space(connection, space, dimension):
                held.vectors.change(np.zeros(0, np.int64), *part)
            self._unsaved += len(held.vectors)
        else:
            # Entries that got windows without being changed: the store has come back to a space that it had left.
            changed = list(dict.fromkeys([*late, *records.changed_since(connection, self._applied)]))
            for start in range(0, len(changed), _GROUP):
                group = changed[start : start + _GROUP]
                fresh = stored.read_entries(connection, space, group, dimension)
                held.vectors.change(np.array(group, np.int64), *fresh)
            self._unsaved += len(changed)
        self._held = held
        self._applied, self._point = newest, records.point(connection, newest)

    def _begin(self, connection: sqlite3.Connection, space: int, dimension: int) -> _Held:
        """The snapshot where there is one to be believed, else nothing."""
        saved = snapshots.load(self._folder, store_id=self._store_id, space=space, dimension=dimension)
        self._applied, self._saved_seq, self._unsaved = 0, -1, 0
        self._trains_from = time.monotonic() + self._plan.train_after
        if saved is None or saved.point != records.point(connection, saved.seq):
            return _Held(VectorIndex(dimension, self._plan), space)
        self._applied = self._saved_seq = saved.seq
        return _Held(VectorIndex.restored(saved.image, self._plan), space)

    def _grow(self, database: Database) -> None:
        held = self._held
        if held is None or time.monotonic() < self._trains_from:
            return
        if held.vectors.due() or held.vectors.retune_due():
            self._growth.begin(lambda stopped: self._train(database, held, stopped))

    def _train(self, database: Database, held: _Held, stopped: Stopped) -> None:
        """What is due; each training ends with a snapshot, which the next start finds."""
        index = held.vectors

        def exact(vectors: IntArray) -> tuple[IntArray, Matrix]:
            with database.reading() as connection:
                return stored.read_vectors(connection, vectors, index.dimension)

        while self._held is held and index.due() and not stopped():
            with self._following:  # no change may come between what is trained and up to where it has followed
                seq, point, base = self._applied, self._point, index.base()

            def changed(seq: int = seq) -> IntArray:
                with database.reading() as connection:
                    return np.array(records.changed_since(connection, seq), np.int64)

            def keep(image: Image, seq: int = seq, point: str = point) -> None:
                self._keep(image, held.space, seq, point, changed)

            index.build(base, exact, stopped, changed, keep)
        if self._held is held and index.retune_due():
            index.retune(exact, stopped)

    def _keep(self, image: Image, space: int, seq: int, point: str, changed: Any) -> None:
        """The snapshot of an index that was just trained; not having it is no reason to do without the index."""
        try:
            self._write(image, space, seq, point)
        except OSError as error:
            log.warning("the trained index was not saved, and is trained again at the next start: %s", error)
            return
        gone = changed()
        if np.isin(gone[gone <= image.rows.newest_entry], image.rows.entries).any():
            snapshots.discard(self._folder)  # what was removed while it was written must not stay in a file
        else:
            self._saved_seq, self._unsaved = seq, 0

    def _write(self, image: Image, space: int, seq: int, point: str) -> None:
        snapshots.save(self._folder, image, store_id=self._store_id, space=space, seq=seq, point=point)
