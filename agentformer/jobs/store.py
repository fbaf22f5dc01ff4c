"""Upload jobs and their progress, stored in a SQLite file that all processes of the same memory share."""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from agentformer.errors import Busy, Conflict, NotFound, StoreDamaged, StoreError
from agentformer.records.codec import from_micros, now, to_micros
from agentformer.records.integrity.file_guard import GuardedConnection, open_database, transaction, translate_errors
from agentformer.records.integrity.write_ahead_log import correct_log
from agentformer.types import FINDABLE, Connection, Row, Statement, common

Progress = Callable[[int, int], None]  # receives the numbers of finished and of all windows of a file
State = Literal["queued", "running", "done", "failed", "cancelled"]
ACTIVE_STATES: tuple[State, ...] = ("queued", "running")  # a job in another state never changes again
_IS_ACTIVE = "state NOT IN ('done', 'failed', 'cancelled')"  # a job with a damaged state is not deleted
_ACTIVE_KEYS = common(f"SELECT key_id FROM jobs WHERE {_IS_ACTIVE}")
_ADD = common(f"INSERT INTO jobs VALUES ({', '.join('?' * 8)}, 0, 0, 0, 0, '', ?, ?, ?)")
_JOB = common("SELECT * FROM jobs WHERE id = ?")
_ACTIVE_JOB = common(f"SELECT * FROM jobs WHERE id = ? AND {_IS_ACTIVE}")
_ACTIVE_IDS = common(f"SELECT id FROM jobs WHERE {_IS_ACTIVE} ORDER BY id")
_IDS = common("SELECT id FROM jobs")
_STATES = common("SELECT state, count(*), min(created_at) FROM jobs GROUP BY state")
_OF_USER = common("SELECT id FROM jobs WHERE namespace = ? AND user_id = ? ORDER BY id")
_DELETE = common(f"DELETE FROM jobs WHERE NOT {_IS_ACTIVE} AND id = ?")
_COUNT_ATTEMPT = common(f"UPDATE jobs SET attempts = attempts + 1 WHERE id = ? AND {_IS_ACTIVE}")
_ATTEMPTS = common("SELECT attempts FROM jobs WHERE id = ?")
_DELETE_OLDER = common(f"DELETE FROM jobs WHERE NOT {_IS_ACTIVE} AND updated_at < ?")
_RETRY_SECONDS = 5  # about the time for one document
_BUSY_SECONDS = 30.0  # a transaction writes a few rows; a longer wait means that another process hangs
_VERSION = 4
_ADVICE = (
    "stop the servers, move this file and its -wal file to another folder, and upload the files of unfinished jobs "
    "again; copies of them are in the folder .jobs of the upload folder"
)
_OPENING = threading.Lock()
# needed because a file lock does not show that the same process uses the file
_OPEN: weakref.WeakSet[GuardedConnection] = weakref.WeakSet()
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS jobs (
        id TEXT PRIMARY KEY,
        namespace TEXT NOT NULL,
        names TEXT NOT NULL,            -- JSON list
        metadata TEXT NOT NULL,         -- JSON object or null
        state TEXT NOT NULL,
        created_at INTEGER NOT NULL,    -- microseconds, UTC
        updated_at INTEGER NOT NULL,
        documents TEXT NOT NULL,        -- JSON list
        windows_done INTEGER NOT NULL,
        windows INTEGER NOT NULL,
        cancelling INTEGER NOT NULL,
        attempts INTEGER NOT NULL,      -- at the first file that has no outcome
        reason TEXT NOT NULL
    ) WITHOUT ROWID
"""
_ADDED_COLUMNS = {  # name -> definition
    "on_conflict": "TEXT NOT NULL DEFAULT 'replace'",  # since version 2
    "key_id": "TEXT NOT NULL DEFAULT ''",  # since version 3
    "user_id": "TEXT NOT NULL DEFAULT ''",  # since version 4
}


@dataclass(frozen=True, slots=True)
class Task:
    """An upload request: the namespace, the file names, and the metadata. `metadata` is None if the client sent none.
    `on_conflict` says what to do if a document of the same name has other content: `replace`, `replace-with-undo`,
    `keep-both` or `fail`.
    `key_id` is the id of the API key of the request, or "" without a key. `user_id` is the user to whom the documents
    belong, or "" for no user."""

    namespace: str
    names: tuple[str, ...]
    metadata: Mapping[str, Any] | None
    on_conflict: Literal["replace", "replace-with-undo", "keep-both", "fail"] = "replace"
    key_id: str = ""
    user_id: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """The state of an upload job. `documents` has the outcome of each finished file, in the order of `task.names`. A
    window is a text passage that is embedded. `windows` counts only the windows of the files that were already read,
    because a file is cut into windows when it is read."""

    id: str
    task: Task
    state: State
    created_at: datetime
    updated_at: datetime
    documents: tuple[Mapping[str, Any], ...] = ()
    windows_done: int = 0
    windows: int = 0
    cancelling: bool = False  # cancellation was requested, and the job has not ended yet
    reason: str = ""  # the reason why the job failed or waits
    reading: tuple[int, int] = (0, 0)  # pages and chunks of the present file, if this process works on the job

    @property
    def ended(self) -> bool:
        return self.state not in ACTIVE_STATES

    def as_json(self) -> dict[str, Any]:
        """Return the job as a dict of JSON values for an HTTP response."""
        return {
            "id": self.id,
            "state": self.state,
            "cancelling": self.cancelling,
            "reason": self.reason,
            "namespace": self.task.namespace,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
            "progress": self.progress(),
            "documents": [dict(document) for document in self.documents],
        }

    def progress(self) -> dict[str, int]:
        """Return these numbers by name: `files_done` of all `files`; the `pages` and `chunks` of the files that were
        already read; and `windows_done` (embedded text passages) of the `windows` of these files."""
        pages, chunks = (sum(document.get(name, 0) for document in self.documents) for name in ("pages", "chunks"))
        return {
            "files_done": len(self.documents),
            "files": len(self.task.names),
            "pages": pages + self.reading[0],
            "chunks": chunks + self.reading[1],
            "windows_done": self.windows_done,
            "windows": self.windows,
        }


class FileProgress:
    """Records the progress of one file of an upload job. The object is called with the number of finished windows
    (embedded text passages) and the number of all windows of the file, and passes both to `report`. `text` is a pair:
    the number of pages and the number of chunks of the file. Both numbers are 0 until the file was read."""

    def __init__(self, report: Progress) -> None:
        self._report = report
        self.text = (0, 0)

    def __call__(self, done: int, windows: int) -> None:
        self._report(done, windows)

    def read(self, pages: int, chunks: int) -> None:
        """Set the number of pages and of chunks, after the file was read."""
        self.text = pages, chunks


def any_usable(documents: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a search can find at least one of these documents (JSON outcomes of files)."""
    return any(document["status"] in FINDABLE for document in documents)


class JobStore:
    """The jobs in a SQLite file, which is created with the first job. A greater job id means a newer job. A change is
    on disk when its method returns, and is then visible to all processes. Thread-safe. Methods raise `StoreError` or a
    subclass if the file cannot be read or written."""

    shared = False  # whether the processes of other machines add jobs

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: GuardedConnection | None = None

    def reading(self) -> AbstractContextManager[Connection]:
        """Return a context manager that yields a connection in a read transaction."""
        return self._transaction("BEGIN")

    def writing(self) -> AbstractContextManager[Connection]:
        """Return a context manager that yields a connection in a write transaction, and commits it at the end."""
        return self._transaction("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Close the SQLite file. The next transaction opens the file again."""
        with self._lock:
            if self._connection is not None:
                _close(self._connection)
                self._connection = None

    @property
    def _exists(self) -> bool:
        return self._connection is not None or self._path.exists()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[GuardedConnection]:
        """Yield a connection in a transaction. If the file was replaced, raise `StoreError`, and close the connection,
        so that the next call opens the new file."""
        with self._lock, translate_errors(self._path, _ADVICE):
            connection = self._connection = self._connection or self._open()
            try:
                connection.check_file()
            except StoreError:
                _close(connection)
                self._connection = None
                raise
            with transaction(connection, begin):
                _check_newer(connection, self._path)  # another process may have migrated the file
                yield connection

    def _open(self) -> GuardedConnection:
        check_log(self._path)
        with _OPENING:
            connection = open_database(self._path, _BUSY_SECONDS, ["jobs"])
            _OPEN.add(connection)
        try:
            if _check_newer(connection, self._path) < _VERSION:
                _migrate(connection)
        except BaseException:
            _close(connection)
            raise
        return connection

    def add(self, job_id: str, task: Task, limit: int) -> Job:
        """Add a new job to the queue, and return it. Raises `Busy` if the queue is full; see `check_limit`."""
        moment = to_micros(now())
        values = [job_id, task.namespace, _json(task.names), _json(task.metadata), "queued", moment, moment, "[]"]
        values += [task.on_conflict, task.key_id, task.user_id]
        with self.writing() as connection:
            _check_limit(connection.run(_ACTIVE_KEYS).fetchall(), task.key_id, limit)
            connection.run(_ADD, values)
            return _get(connection, job_id)

    def check_limit(self, key_id: str, limit: int) -> None:
        """Raise `Busy` if the queue has no place for a job of the API key `key_id`. The queue has `limit` places for
        jobs that are queued or running. The jobs of one key may use about half of the places that the jobs of other
        keys leave free. A caller without a key (`key_id` is empty) may fill the whole queue. Call this method before
        you write the files of a new job."""
        _check_limit(self._rows(_ACTIVE_KEYS), key_id, limit)

    def get(self, job_id: str) -> Job:
        """Return the job with this id. Raises `NotFound` if there is no such job."""
        rows = self._rows(_JOB, [job_id])
        if not rows:
            raise _not_found(job_id)
        return _job(rows[0])

    def page(self, namespaces: Sequence[str], after: str, limit: int, key_id: str | None = None) -> list[Job]:
        """Return at most `limit` jobs that are older than the job with the id `after`, newest first. If `after` is
        empty, start with the newest job. If `namespaces` is empty, include the jobs of all namespaces. If `key_id` is
        given, include only the jobs of this key."""
        conditions, values = ["1 = 1"], [*namespaces]
        if namespaces:
            conditions.append(f"namespace IN ({', '.join('?' * len(namespaces))})")
        if key_id is not None:
            conditions.append("key_id = ?")
            values.append(key_id)
        if after:
            conditions.append("id < ?")
            values.append(after)
        query = common(f"SELECT * FROM jobs WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?")
        return [_job(row) for row in self._rows(query, [*values, limit])]

    def states(self) -> dict[str, tuple[int, float]]:
        """Return for each state the number of its jobs, and the age of the oldest in seconds."""
        at = to_micros(now()) or 0
        return {row[0]: (row[1], max(0.0, (at - row[2]) / 1_000_000)) for row in self._rows(_STATES)}

    def active(self) -> list[str]:
        """Return the ids of the jobs that are queued or running, oldest first."""
        return [row["id"] for row in self._rows(_ACTIVE_IDS)]

    def ids(self) -> set[str]:
        """Return the ids of all jobs."""
        return {row["id"] for row in self._rows(_IDS)}

    def _rows(self, query: Statement, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query. If the SQLite file does not exist, return no rows, and do not create the file."""
        if not self._exists:
            return []
        with self.reading() as connection:
            return connection.run(query, values).fetchall()

    def start(self, job_id: str) -> Job | None:
        """Mark a job as running, and return it. Return None if the job has ended. The caller must hold the lock of the
        job."""
        with self.writing() as connection:
            _set(connection, job_id, state="running", reason="")
            row = connection.run(_ACTIVE_JOB, [job_id]).fetchone()
            return _job(row) if row else None

    def count_attempt(self, job_id: str) -> int:
        """Increase the number of attempts to ingest the next file of a job. Return the increased number."""
        with self.writing() as connection:
            connection.run(_COUNT_ATTEMPT, [job_id])
        return self.attempts(job_id)

    def attempts(self, job_id: str) -> int:
        """Return the number of attempts to ingest the next file of a job that have not ended."""
        with self.reading() as connection:
            row = connection.run(_ATTEMPTS, [job_id]).fetchone()
            return int(row["attempts"]) if row else 0

    def add_outcome(self, job: Job, document: Mapping[str, Any], windows: int) -> Job:
        """Store the outcome of the next file of a job, and return the changed job. `windows` is the number of text
        passages in all files that are finished, including this file."""
        documents = _json([*job.documents, document])
        with self.writing() as connection:
            _set(connection, job.id, documents=documents, attempts=0, windows_done=windows, windows=windows)
            return _get(connection, job.id)

    def set_progress(self, job_id: str, done: int, windows: int) -> Job:
        """Store how many text passages of a job are embedded (`done`) and how many there are in the files that were
        already read (`windows`). Return the changed job."""
        with self.writing() as connection:
            _set(connection, job_id, windows_done=done, windows=windows)
            return _get(connection, job_id)

    def requeue(self, job_id: str, reason: str = "") -> None:
        """Put a running job back into the queue, and reset its attempts. `reason` says why the job waits."""
        with self.writing() as connection:
            _set(connection, job_id, state="queued", attempts=0, reason=reason)

    def end(self, job_id: str, state: Literal["done", "failed", "cancelled"], reason: str = "") -> None:
        """Set the final state of a job. `reason` says why the job has this state."""
        with self.writing() as connection:
            _set(connection, job_id, state=state, reason=reason)

    def cancel(self, job_id: str) -> Job:
        """Mark a job for cancellation, and return the job. The process that works on the job ends it later. Raises
        `NotFound` if there is no such job, and `Conflict` if the job has already ended."""
        if not self._exists:
            raise _not_found(job_id)
        with self.writing() as connection:
            job = _get(connection, job_id)
            if job.ended:
                raise Conflict(f"the job {job_id} cannot be cancelled, because it has ended (state: {job.state})")
            _set(connection, job_id, cancelling=1)
            return _get(connection, job_id)

    def of_user(self, namespace: str, user_id: str) -> list[str]:
        """Return the ids of the jobs of a user in a namespace, oldest first."""
        return [row["id"] for row in self._rows(_OF_USER, [namespace, user_id])]

    def delete(self, ids: Sequence[str]) -> None:
        """Delete ended jobs, so that no file contains their names and metadata any more."""
        if not ids:
            return
        with self.writing() as connection:
            connection.run_many(_DELETE, ((job_id,) for job_id in ids))
        self._clear_log()

    def _clear_log(self) -> None:
        """Empty the write-ahead log, which may contain deleted rows. If another process reads it at this moment, a
        later checkpoint does."""
        with self._lock, translate_errors(self._path, _ADVICE):
            if self._connection is not None:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def delete_older(self, age: timedelta) -> None:
        """Delete all jobs that ended more than `age` ago."""
        if not self._exists:
            return
        with self.writing() as connection:
            connection.run(_DELETE_OLDER, [to_micros(now() - age)])


def check_log(path: Path) -> None:
    """Correct a damaged byte in the write-ahead log of the jobs `path`, whose process was killed. If this process has
    the jobs open, do nothing. Raises `StoreDamaged` if jobs are behind damage that cannot be corrected."""
    with _OPENING:
        if not any(other.path == path for other in _OPEN):
            correct_log(path, _ADVICE)


def _close(connection: GuardedConnection) -> None:
    connection.close()
    _OPEN.discard(connection)


def _check_newer(connection: GuardedConnection, path: Path) -> int:
    """Return the version of the file. Raises `StoreError` if a newer version of AgentFormer has migrated it."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > _VERSION:
        known = f"version {version} of the file; this release knows only {_VERSION}"
        raise StoreError(f"a newer version of agentformer wrote {path} ({known}); upgrade agentformer")
    return version


def _migrate(connection: GuardedConnection) -> None:
    """Create the table, or add the columns that an older file lacks. Several processes may do this at the same time."""
    with transaction(connection, "BEGIN IMMEDIATE"):
        connection.execute(_SCHEMA)
        columns = {row["name"] for row in connection.execute("PRAGMA table_info(jobs)")}
        for name, definition in _ADDED_COLUMNS.items():
            if name not in columns:
                connection.execute(f"ALTER TABLE jobs ADD COLUMN {name} {definition}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")


def _set(connection: Connection, job_id: str, **values: Any) -> None:
    """Set the given columns of a job, unless the job has ended."""
    columns = ", ".join(f"{name} = ?" for name in (*values, "updated_at"))
    query = common(f"UPDATE jobs SET {columns} WHERE id = ? AND {_IS_ACTIVE}")
    connection.run(query, [*values.values(), to_micros(now()), job_id])


def _check_limit(active: Sequence[Row], key_id: str, limit: int) -> None:
    """Raise `Busy` if there is no place for a job of the API key `key_id`. `active` has a row for each job in the
    queue."""
    own = sum(row["key_id"] == key_id for row in active) if key_id else 0
    if len(active) >= limit:
        reason = f"{limit} upload jobs are already queued or running"
    elif own >= limit - len(active):
        reason = f"{own} upload jobs of this key are already queued or running, and the other places are for other keys"
    else:
        return
    raise Busy("max_jobs", f"{reason}; send this request again later", _RETRY_SECONDS)


def _get(connection: Connection, job_id: str) -> Job:
    row = connection.run(_JOB, [job_id]).fetchone()
    if row is None:
        raise _not_found(job_id)
    return _job(row)


def damaged_rows(connection: sqlite3.Connection) -> list[str]:
    """Return the ids of the jobs that cannot be read. A file of a former version is not checked."""
    connection.row_factory = sqlite3.Row
    if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
        return []
    damaged = []
    for row in connection.execute("SELECT * FROM jobs ORDER BY id"):
        try:
            _job(row)
        except StoreDamaged:
            damaged.append(_id_of(row))
    return damaged


def _job(row: Row) -> Job:
    """Return the job in a row. Raises `StoreDamaged` if the row contains a value that this module never writes."""
    try:
        names, metadata, documents = (json.loads(row[name]) for name in ("names", "metadata", "documents"))
        states, numbers = get_args(State), ("windows_done", "windows", "cancelling", "attempts")
        valid = row["state"] in states and all(isinstance(row[name], int) for name in numbers)
        if not (valid and _are(names, str) and _are(documents, dict) and isinstance(metadata, dict | None)):
            raise ValueError
        created, updated = from_micros(row["created_at"]), from_micros(row["updated_at"])
        assert created is not None and updated is not None
        owner = (row[name] for name in ("on_conflict", "key_id", "user_id"))
        return Job(
            **{name: row[name] for name in ("id", "state", "windows_done", "windows", "reason")},
            task=Task(row["namespace"], tuple(names), metadata, *owner),
            created_at=created,
            updated_at=updated,
            documents=tuple(documents),
            cancelling=bool(row["cancelling"]),
        )
    except (ValueError, TypeError, IndexError, OverflowError, AssertionError, RecursionError):
        raise StoreDamaged(f"the upload job {_id_of(row)} is damaged; upload its files again") from None


def _id_of(row: Row) -> str:
    """Return the id of a damaged job, or "" if even the names of the columns are damaged."""
    with suppress(IndexError):
        return str(row["id"])[:80]
    return ""


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _json(value: Any) -> str:
    return json.dumps(dict(value) if isinstance(value, Mapping) else value)


def _not_found(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id}; ended jobs are deleted after some time")
