"""What is known of every job, among all processes that serve one memory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from agentformer.errors import Busy, Conflict, NotFound
from agentformer.jobs.file import JobFile
from agentformer.jobs.job import WAITING, Job, Task
from agentformer.records.codec import from_micros, now, to_micros

_WAITS = f"state IN ({', '.join(repr(state) for state in WAITING)})"
_RETRY_SECONDS = 5  # until a place may be free: about what a document takes


class JobStore:
    """Jobs by id, which sort by time. Every change is one transaction, and reads see what was acknowledged by any
    process. Raises `StoreError` and its kinds."""

    def __init__(self, path: Path) -> None:
        self._file = JobFile(path)

    def add(self, job_id: str, task: Task, most: int) -> Job:
        """A new job, queued. Raises `Busy` where `most` jobs wait or run."""
        moment = to_micros(now())
        values = (job_id, task.namespace, _text(task.names), _text(task.metadata), "queued", moment, moment, "[]")
        with self._file.writing() as connection:
            _check_room(connection, most)
            connection.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * 8)}, 0, 0, 0, 0, '')", values)
            return _get(connection, job_id)

    def check_room(self, most: int) -> None:
        """Raises `Busy` as `add` would, before anything is written for it."""
        if self._file.there:
            with self._file.reading() as connection:
                _check_room(connection, most)

    def get(self, job_id: str) -> Job:
        """Raises `NotFound`."""
        if not self._file.there:
            raise _unknown(job_id)
        with self._file.reading() as connection:
            return _get(connection, job_id)

    def page(self, namespaces: Sequence[str], after: str, limit: int) -> list[Job]:
        """At most `limit` jobs of the namespaces (none given: of all), newest first, older than the one with the id
        `after`."""
        if not self._file.there:
            return []
        conditions, values = ["1"], [*namespaces]
        if namespaces:
            conditions.append(f"namespace IN ({', '.join('?' * len(namespaces))})")
        if after:
            conditions.append("id < ?")
            values.append(after)
        with self._file.reading() as connection:
            rows = connection.execute(
                f"SELECT * FROM jobs WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?", [*values, limit]
            )
            return [_job(row) for row in rows]

    def waiting(self) -> list[str]:
        """Ids of the jobs that wait or run, oldest first."""
        if not self._file.there:
            return []
        with self._file.reading() as connection:
            return [row["id"] for row in connection.execute(f"SELECT id FROM jobs WHERE {_WAITS} ORDER BY id")]

    def begin(self, job_id: str) -> Job | None:
        """The job, running from now on; None if it has ended. For who holds the job's lock."""
        with self._file.writing() as connection:
            _set(connection, job_id, state="running", reason="")
            job = _found(connection, job_id)
            return None if job is None or job.ended else job

    def attempt(self, job_id: str) -> int:
        """How many attempts at the next file there are with this one."""
        with self._file.writing() as connection:
            connection.execute(f"UPDATE jobs SET attempts = attempts + 1 WHERE id = ? AND {_WAITS}", [job_id])
            row = connection.execute("SELECT attempts FROM jobs WHERE id = ?", [job_id]).fetchone()
            return int(row["attempts"]) if row else 0

    def finished(self, job: Job, document: Mapping[str, Any], windows: int) -> Job:
        """The next file has an outcome, and all windows known of so far are done."""
        documents = _text([*job.documents, document])
        with self._file.writing() as connection:
            _set(connection, job.id, documents=documents, attempts=0, windows_done=windows, windows=windows)
            return _get(connection, job.id)

    def progress(self, job_id: str, done: int, windows: int) -> Job:
        """Windows done and in all, of all files so far."""
        with self._file.writing() as connection:
            _set(connection, job_id, windows_done=done, windows=windows)
            return _get(connection, job_id)

    def back(self, job_id: str, reason: str = "") -> None:
        """Into the queue again, as nobody's fault: the attempt does not count."""
        with self._file.writing() as connection:
            _set(connection, job_id, state="queued", attempts=0, reason=reason)

    def end(self, job_id: str, state: Literal["done", "failed", "cancelled"], reason: str = "") -> None:
        with self._file.writing() as connection:
            _set(connection, job_id, state=state, reason=reason)

    def cancel(self, job_id: str) -> Job:
        """Note that it is to end. Raises `NotFound`, and `Conflict` where it has ended."""
        if not self._file.there:
            raise _unknown(job_id)
        with self._file.writing() as connection:
            job = _get(connection, job_id)
            if job.ended:
                raise Conflict(f"the job {job_id} has ended: it is {job.state}")
            _set(connection, job_id, cancelling=1)
            return _get(connection, job_id)

    def forget(self, age: timedelta) -> None:
        """Delete jobs that ended longer ago than `age`."""
        if not self._file.there:
            return
        with self._file.writing() as connection:
            before = to_micros(now() - age)
            connection.execute(f"DELETE FROM jobs WHERE NOT {_WAITS} AND updated_at < ?", [before])

    def close(self) -> None:
        self._file.close()


def _set(connection: sqlite3.Connection, job_id: str, **values: Any) -> None:
    """Change a job that has not ended; no other is ever changed."""
    columns = ", ".join(f"{name} = ?" for name in (*values, "updated_at"))
    connection.execute(
        f"UPDATE jobs SET {columns} WHERE id = ? AND {_WAITS}", [*values.values(), to_micros(now()), job_id]
    )


def _check_room(connection: sqlite3.Connection, most: int) -> None:
    if connection.execute(f"SELECT count(*) FROM jobs WHERE {_WAITS}").fetchone()[0] >= most:
        raise Busy("max_jobs", f"{most} jobs wait or run already; send it again later", _RETRY_SECONDS)


def _get(connection: sqlite3.Connection, job_id: str) -> Job:
    job = _found(connection, job_id)
    if job is None:
        raise _unknown(job_id)
    return job


def _found(connection: sqlite3.Connection, job_id: str) -> Job | None:
    row = connection.execute("SELECT * FROM jobs WHERE id = ?", [job_id]).fetchone()
    return None if row is None else _job(row)


def _job(row: sqlite3.Row) -> Job:
    return Job(
        id=row["id"],
        task=Task(row["namespace"], tuple(json.loads(row["names"])), json.loads(row["metadata"])),
        state=row["state"],
        created_at=_moment(row["created_at"]),
        updated_at=_moment(row["updated_at"]),
        documents=tuple(json.loads(row["documents"])),
        windows_done=row["windows_done"],
        windows=row["windows"],
        cancelling=bool(row["cancelling"]),
        reason=row["reason"],
    )


def _moment(micros: int) -> datetime:
    moment = from_micros(micros)
    assert moment is not None
    return moment


def _text(value: Any) -> str:
    return json.dumps(value if isinstance(value, (list, tuple)) else dict(value))


def _unknown(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id}")
