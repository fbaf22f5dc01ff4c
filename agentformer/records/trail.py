"""The trail of a store: who did what to which entry, document or key, when, and from where.

A change of an entry writes its row in the same transaction, so no change is without its row. A row has no text, and no
row is changed or deleted before its time: `trim` deletes the rows that are older than the setting `trail_days`. Pages
and chunks have no rows, because they change with their document.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, NamedTuple

from agentformer.actor import ACTOR, Actor
from agentformer.records.codec import from_micros, now_micros, to_micros
from agentformer.types import RecordStore, Row, Shown, Statement, common

_ACTOR = "key, person, via, client, request"
COLUMNS = f"at, action, subject, namespace, kind, version, {_ACTOR}"
_ADD = common(f"INSERT INTO trail ({COLUMNS}) VALUES ({', '.join('?' * 11)})")
_TRIM = common("DELETE FROM trail WHERE seq IN (SELECT seq FROM trail WHERE at < ? LIMIT ?)")
# A plus sign keeps a database from using the index of the column. The rows are read in their order, which is that of
# the times unless a clock was set back; the index of the times only finds the first row.
_OLDEST = common("SELECT 1 FROM trail WHERE at < ? LIMIT 1")
_FIRST = common("SELECT min(+seq) FROM trail WHERE at >= ?")
_ROWS = f"SELECT seq, {COLUMNS} FROM trail WHERE seq > ? AND +at >= ? AND (? = '' OR key = ?)"
_WANTED = Statement(
    sqlite=f"{_ROWS} AND (? OR hex(namespace) IN (SELECT value FROM json_each(?)))",
    postgres=f"{_ROWS} AND (? OR namespace = ANY(?))".replace("?", "%s"),
)
_PAGE = Statement(f"{_WANTED.sqlite} ORDER BY seq LIMIT ?", f"{_WANTED.postgres} ORDER BY seq LIMIT %s")
_OF_SUBJECT = Statement(
    f"{_WANTED.sqlite} AND subject = ? ORDER BY seq LIMIT ?",
    f"{_WANTED.postgres} AND subject = %s ORDER BY seq LIMIT %s",
)
_PIECE = 10_000  # rows that one transaction deletes, so that writers wait for a moment only
_DAY = 86_400_000_000  # microseconds
_MOST_DAYS = 36_500
_NO_ROW = 2**62  # the number of a row that no trail has


class Act(NamedTuple):
    """What was done, and by whom. An unknown value is empty. `version` is the version of the entry afterwards."""

    seq: int
    at: datetime
    action: Annotated[str, Shown("stored, learnt, changed, superseded, removed, or a word such as key-added.")]
    subject: Annotated[str, Shown("The id of the entry, document or key.")]
    namespace: str
    kind: str
    version: int
    key: Annotated[str, Shown("The id of the key that was used.")]
    user: Annotated[str, Shown("The user of the system (command line) or of the access token.")]
    via: Annotated[str, Shown("cli, http, mcp, job, or program.")]
    client: Annotated[str, Shown("The address of the client.")]
    request: Annotated[str, Shown("The id of the request, which the log has, too, or of the job.")]


class Changed(NamedTuple):
    """An entry that was changed, as it is written into the trail."""

    action: str
    id: str
    namespace: str
    kind: str
    version: int


def row_of(change: Changed) -> tuple[object, ...]:
    """Return the row of a change by the present actor, in the order of `COLUMNS`."""
    return now_micros(), *change, *_actor()


def rest_of_row(action: str) -> tuple[object, ...]:
    """Return the parts of a row that do not come from the entry: the time and the action, and the present actor."""
    return now_micros(), action, *_actor()


class Wanted(NamedTuple):
    """The rows that are read: those about one `subject`, of one `key`, of some `namespaces`, and since a time, if these
    are given. A reader of some namespaces sees only rows about entries of these."""

    subject: str = ""
    key: str = ""
    namespaces: Sequence[str] = ()
    since: datetime | None = None


class Trail:
    """The trail of a memory. Thread-safe."""

    def __init__(self, database: RecordStore) -> None:
        self._database = database

    def note(self, action: str, subject: str, namespace: str = "") -> None:
        """Write a row about something other than an entry, such as an API key or a user. A store that is read-only gets
        none."""
        if self._database.read_only:
            return
        with self._database.writing() as connection:
            connection.run(_ADD, row_of(Changed(action, subject, namespace, "", 0)))

    def trim(self, days: float, pieces: int = sys.maxsize) -> int:
        """Delete the rows that are older than some days, and return their number. At most `pieces` groups of rows are
        deleted, each in a transaction of its own."""
        before = now_micros() - int(min(days, _MOST_DAYS) * _DAY)
        deleted = 0
        for _ in range(pieces):
            with self._database.reading() as connection:
                old = connection.run(_OLDEST, [before]).fetchone()
            if old is None or self._database.read_only:
                break
            with self._database.writing() as connection:
                deleted += connection.run(_TRIM, [before, _PIECE]).rowcount
        return deleted

    def page(self, wanted: Wanted, *, after: int = 0, limit: int = 100) -> list[Act]:
        """Return at most `limit` rows after the row `after`, oldest first."""
        since = to_micros(wanted.since) if wanted.since else 0
        names = [*wanted.namespaces]
        with self._database.reading() as connection:
            if not connection.is_remote:  # the JSON functions of SQLite end a text at its first NUL
                names = [name.encode().hex().upper() for name in names]
            if since and not after and not wanted.subject:
                after = (connection.run(_FIRST, [since]).fetchone()[0] or _NO_ROW) - 1
            values = [after, since, wanted.key, wanted.key, not names, names]
            if wanted.subject:
                rows = connection.run(_OF_SUBJECT, [*values, wanted.subject, limit])
            else:
                rows = connection.run(_PAGE, [*values, limit])
            return [*map(_act, rows)]


def _actor() -> Actor:
    """Return the present actor. On the command line, it is the user of the system who runs this process."""
    actor = ACTOR.get()
    return actor._replace(user=_system_user()) if actor.via == "cli" else actor


@cache
def _system_user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # not a POSIX system, or a user without a name
        return os.environ.get("USERNAME", "") or f"uid {getattr(os, 'getuid', lambda: '')()}".strip()


def _act(row: Row) -> Act:
    at = from_micros(row["at"])
    assert at is not None
    values = (row[name] for name in ("action", "subject", "namespace", "kind", "version", *_ACTOR.split(", ")))
    return Act(row["seq"], at, *values)
