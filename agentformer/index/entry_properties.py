"""Properties that a search derives from an entry: its title, its language, the days that it names, keys of what it
states, and whether it is a question. They are stored in the table `derived`, in the transaction that stores the entry.
If many entries are stored at once, they are analyzed while their vectors are computed. A background thread later writes
the rows that are still missing (`property_threads.py`).

A row of this table is a cache. It is used only if its own checksum is correct, and if this version of the analysis
(`VERSION`) computed it from the current state of the entry (compared by checksum). Otherwise, the search derives the
properties again, and `outdated` returns the entry, so that a background thread can replace the row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date
from typing import Any, NamedTuple
from zlib import crc32

from agentformer.errors import StoreDamaged
from agentformer.records.codec import decode_json, from_row
from agentformer.records.scopes import SEARCHED
from agentformer.text.dates.expressions import find_date_ranges
from agentformer.text.dates.relative import DaySpan
from agentformer.text.facts.statement_words import is_long, keys
from agentformer.text.languages.detection import detect_language, language_code
from agentformer.text.splitting import ends_with_question, stated
from agentformer.types import DOCUMENT_KINDS, UNSEARCHED_KINDS, Analyzed, Connection, MemoryEntry, Row, Statement

# The version of the analysis. Raise it whenever a function of this module, of `text.dates`, of `text.languages`, of
# `text.facts.statement_words` or of `text.splitting` returns another result for a text.
# `tests/index/test_entry_properties.py` detects such a change.
VERSION = 3
INLINE = 32  # maximum entries whose rows are written in their own transaction; the analysis of each takes up to 1 ms
EVENTS = frozenset({"event", "error", "milestone"})  # kinds of entries about a moment: two of them can both be true
DATE_TEXT = 2_000  # code points in which days are searched
MESSAGE_TEXT = 1_000  # code points of a message that are read
TITLE_TEXT = 102  # code points of the content in which a title is searched
_WITHOUT_FACTS = DOCUMENT_KINDS | EVENTS | {"summary"}
_TITLE_WORDS = 8  # maximum words of a first line that is used as a title
_TITLE_END = re.compile(r"[^\s.,;:!?]$")
_QUALIFIER = re.compile(r"(?<!\s)\s*+\([^()]*+\)$")  # "Mercury (planet)" has the title "Mercury"
_Prepared = tuple[Any, ...]  # a row of the table
Analysis = tuple[str, str, str, str, str]  # the title, language, days, facts and message of an entry, as stored
Analyses = Mapping[int, tuple[MemoryEntry, Analysis]]  # by the `id` of the entry object
_COLUMNS = ("entry", "version", "source", "title", "language", "days", "facts", "message")
_SEPARATOR = "\x1f"
_CHECKED = len(_COLUMNS)  # number of columns that the checksum covers
_WRITE = Statement(
    sqlite=f"INSERT OR REPLACE INTO derived ({', '.join(_COLUMNS)}, checksum) "
    f"VALUES ({', '.join('?' * len(_COLUMNS))}, ?)",
    postgres=f"""
    INSERT INTO derived (entry_namespace, {", ".join(_COLUMNS)}, checksum)
    SELECT p.namespace, v.* FROM (
        VALUES (%s::bigint, %s::bigint, %s::bigint, %s::text, %s::text, %s::text, %s::text, %s::text, %s::bigint)
    ) AS v ({", ".join(_COLUMNS)}, checksum) JOIN entry_places AS p ON p.num = v.entry
    ON CONFLICT (entry_namespace, entry) DO UPDATE SET
        {", ".join(f"{column} = excluded.{column}" for column in (*_COLUMNS[1:], "checksum"))}
    """,
)
_READ_COLUMNS = (
    f"{', '.join(f'd.{column}' for column in _COLUMNS)}, d.checksum, e.document_id, e.occurred_at, "
    "CASE WHEN e.kind = 'message' AND e.session_id IS NOT NULL THEN e.id END, e.created_at, e.speaker, "
    "e.namespace, e.session_id, e.user_id, e.agent_id, e.project, e.role"
)
_READ = Statement(
    sqlite=f"SELECT {_READ_COLUMNS} FROM derived AS d JOIN entries AS e ON e.num = d.entry "
    "WHERE d.entry IN (SELECT value FROM json_each(?)) AND d.version = ? AND d.source IS e.checksum",
    postgres=f"SELECT {_READ_COLUMNS} FROM derived AS d "
    "JOIN entries AS e ON e.namespace = d.entry_namespace AND e.num = d.entry "
    "WHERE d.entry = ANY(%s) AND d.version = %s AND d.source IS NOT DISTINCT FROM e.checksum",
)
_PLAIN = Statement(
    sqlite="SELECT entry, title = '' AND message = '' FROM derived "
    "WHERE entry IN (SELECT value FROM json_each(?)) AND version = ?",
    postgres="SELECT entry, title = '' AND message = '' FROM derived WHERE entry = ANY(%s) AND version = %s",
)
_OUTDATED = Statement(
    sqlite="SELECT e.* FROM entries AS e LEFT JOIN derived AS d ON d.entry = e.num "
    f"WHERE e.num > ? AND {SEARCHED} AND (d.entry IS NULL OR d.version <> ? OR NOT (d.source IS e.checksum)) "
    "ORDER BY e.num LIMIT ?",
    postgres="SELECT e.* FROM entries AS e "
    "LEFT JOIN derived AS d ON d.entry_namespace = e.namespace AND d.entry = e.num "
    f"WHERE e.num > %s AND {SEARCHED} "
    "AND (d.entry IS NULL OR d.version <> %s OR d.source IS DISTINCT FROM e.checksum) ORDER BY e.num LIMIT %s",
)
_CHECKSUMS = Statement(
    sqlite="SELECT num, checksum FROM entries WHERE num IN (SELECT value FROM json_each(?))",
    postgres="SELECT num, checksum FROM entries WHERE num = ANY(%s)",
)


class Message(NamedTuple):
    """The properties of a message. `stated` is near 0 if the message consists of questions, and grows to 1 with the
    length of the other sentences (`text.splitting.stated`)."""

    question: bool
    stated: float


class Turn(NamedTuple):
    """The position of a message in its conversation. `moment` is the time of the message, in microseconds since
    1970-01-01 UTC. `session` identifies the conversation: its namespace, session id, user, agent and project. `role` is
    that of a chat, such as "assistant"."""

    id: str
    moment: int
    speaker: str
    session: tuple[str | None, ...]
    role: str


class Derived:
    """The stored properties of one entry (its row of the table `derived`), and the columns of the table `entries` that
    a ranking needs. Some are decoded when they are used, because a search keeps thousands of rows in memory: a
    collection of garbage visits one object for each row instead of about ten, as it leaves out texts, numbers, and
    tuples that contain only these."""

    __slots__ = ("_days", "_facts", "_message", "_turn", "document", "language", "occurred_at", "title")

    def __init__(self, row: Sequence[Any]) -> None:
        _, _, _, title, language, days, facts, message, _, document, occurred_at, message_id, created_at, *turn = row
        self.title: str = title  # a title by which other entries may mention this entry, or ""
        self.language: str = language  # language of the content (ISO 639-1), or ""
        self.document: str | None = document  # the id of the document to which the entry belongs
        self.occurred_at: int | None = occurred_at  # in microseconds
        self._days: str = days
        self._facts: str = facts
        self._message: str = message
        self._turn: tuple[Any, ...] | None = None
        if message_id is not None:
            moment = created_at if occurred_at is None else occurred_at
            self._turn = message_id, moment, turn[0], tuple(turn[1:-1]), turn[-1]

    @property
    def days(self) -> tuple[DaySpan, ...]:
        """The first and last day of each period that the content names."""
        days = [date.fromordinal(int(number)) for number in self._days.split()]
        return tuple(zip(days[::2], days[1::2], strict=True))

    @property
    def analyzed(self) -> Analyzed:
        """The language of the entry, and the keys of what it states."""
        return Analyzed(self.language, tuple(decode_json(self._facts)) if self._facts else ())

    @property
    def message(self) -> Message:
        """The properties that only a message has."""
        question, share, *_ = decode_json(self._message)  # rows of former versions have more values
        return Message(question, share)

    @property
    def turn(self) -> Turn | None:
        """The position in a conversation, for a message of a session."""
        return None if self._turn is None else Turn(*self._turn)


NONE: Mapping[int, Derived] = {}
PLAIN = Derived((*[None] * 3, "", "", "", "", "", None, None, None, None, None))  # used for each plain row, see `plain`
NO_ANALYSES: Analyses = {}


def read(connection: Connection, nums: Sequence[int]) -> dict[int, Derived]:
    """Return a dictionary: row number of an entry -> its derived row. Outdated and damaged rows are left out."""
    rows = connection.run(_READ, [[*nums], VERSION], plain=True).fetchall() if nums else []
    return {row[0]: Derived(row) for row in rows if _checksum(*row[:_CHECKED]) == row[_CHECKED]}


def plain(connection: Connection, nums: Sequence[int]) -> dict[int, int]:
    """Find entries whose derived rows a ranking need not read. Return a dictionary: row number of an entry -> 1 if its
    derived row is plain, otherwise 0. A plain row has no title and belongs to no message of a session, so it cannot
    change a ranking. This query is much faster than reading the rows with `read`. Rows are not compared with their
    entries, because each change of a content, a title or a kind replaces the row in the same transaction."""
    return dict(connection.run(_PLAIN, [[*nums], VERSION], plain=True).fetchall()) if nums else {}


def write(
    connection: Connection,
    nums: Sequence[int],
    entries: Sequence[MemoryEntry],
    analyses: Analyses = NO_ANALYSES,
) -> None:
    """Write the rows of entries that were just stored. `nums` contains the row number of each entry. `analyses`
    contains the results of `property_threads.analyzing`. If there are more than `INLINE` entries, only those in
    `analyses` get a row now, and a background thread writes the other rows. Entries of kinds that are never searched
    get no row."""
    searched = [item for item in zip(nums, entries, strict=True) if item[1].kind not in UNSEARCHED_KINDS]
    if len(searched) > INLINE:
        searched = [item for item in searched if id(item[1]) in analyses]
    checksums = _checksums_of(connection, [num for num, _ in searched])
    prepared = []
    for num, entry in searched:
        if num in checksums:
            known = analyses.get(id(entry))
            prepared.append(_row(num, checksums[num], known[1] if known else analyze(entry)))
    connection.run_many(_WRITE, prepared)


def outdated(connection: Connection, after: int, limit: int) -> list[Row]:
    """Return at most `limit` rows of the table `entries` whose derived row is missing or outdated, in order of their
    numbers, beginning after the number `after`."""
    return connection.run(_OUTDATED, [after, VERSION, limit]).fetchall()


def prepare(stored: Iterable[Row]) -> list[_Prepared]:
    """Compute and return the derived rows for these rows of the table `entries`. Damaged entries are left out."""
    prepared = []
    for row in stored:
        with suppress(StoreDamaged):
            prepared.append(_row(row["num"], row["checksum"], analyze(from_row(row))))
    return prepared


def write_prepared(connection: Connection, rows: Iterable[_Prepared]) -> None:
    """Write derived rows. The row of an entry that has changed since `prepare` is left out."""
    rows = list(rows)
    present = _checksums_of(connection, [row[0] for row in rows])
    connection.run_many(_WRITE, [row for row in rows if row[0] in present and present[row[0]] == row[2]])


def _checksums_of(connection: Connection, nums: Sequence[int]) -> dict[int, int | None]:
    return {row[0]: row[1] for row in connection.run(_CHECKSUMS, [list(nums)]).fetchall()}


def _row(num: int, checksum: int | None, analysis: Analysis) -> _Prepared:
    values = (num, VERSION, checksum, *analysis)
    return (*values, _checksum(*values))


def analyze(entry: MemoryEntry) -> Analysis:
    """Return the properties of an entry, as they are stored in its row."""
    on = entry.occurred_at.astimezone(UTC).date() if entry.occurred_at else None
    message: list[Any] | None = None
    if entry.kind == "message" and entry.session_id is not None:
        text = entry.content[:MESSAGE_TEXT]
        message = [ends_with_question(text), stated(text)]
    prior = language_code(entry.metadata.get("language"))
    language, start = detect_language(entry.content, prior), entry.content[:DATE_TEXT]
    same = not prior and len(start) == len(entry.content)
    spans = _days(start, on, language if same else detect_language(start))
    days = " ".join(f"{first.toordinal()} {last.toordinal()}" for first, last in spans)
    facts = fact_keys(entry, lambda: language)
    texts = json.dumps(facts) if facts else "", json.dumps(message) if message else ""
    return _entry_title(entry), language, days, *texts


def _checksum(num: int, version: int, source: int | None, *texts: str) -> int:
    # a special checksum function, because that of `records.integrity.checksums` accepts any values and is three times
    # slower
    return crc32(f"{num} {version} {source}\x1f{_SEPARATOR.join(texts)}".encode())


def entry_language(entry: MemoryEntry) -> str:
    """Return the language code of an entry (ISO 639-1), or "" if the language is unknown. If the text does not show the
    language clearly, `metadata["language"]` is used."""
    return detect_language(entry.content, language_code(entry.metadata.get("language")))


def fact_keys(entry: MemoryEntry, language: Callable[[], str]) -> tuple[str, ...]:
    """Return the keys of what an entry states (see `text.facts.statement_words.keys`). Parts of documents, summaries,
    events and very long texts have none. `language` returns the language of the entry."""
    if entry.kind in _WITHOUT_FACTS or is_long(entry.content):
        return ()
    return keys(entry.content, language())


def named_days(content: str, on: date | None) -> tuple[DaySpan, ...]:
    """Return the first and last day of each period that a content names, without repetition. `on` is the day to which
    words such as "yesterday" refer."""
    text = content[:DATE_TEXT]
    return _days(text, on, detect_language(text))


def _days(text: str, on: date | None, language: str) -> tuple[DaySpan, ...]:
    return tuple(dict.fromkeys((days.first, days.last) for days in find_date_ranges(text, on, language)))


def _entry_title(entry: MemoryEntry) -> str:
    source = entry.source
    if source is None:
        return own_title(entry.title, entry.content[:TITLE_TEXT])
    begins_document = source.start == 0 and source.page in (None, 1)
    return own_title("", entry.content[:TITLE_TEXT]) if begins_document else ""


def own_title(title: str, content: str) -> str:
    """Return the title without a qualifier in parentheses: "Mercury (planet)" gives "Mercury". If there is no title,
    use the first line of the content if this line looks like a title."""
    title = (title or _first_line(content)).strip()
    return _QUALIFIER.sub("", title) if title.endswith(")") else title


def _first_line(content: str) -> str:
    """Return the first line of a text if the line looks like a title, otherwise ""."""
    line, _, rest = content.partition("\n")
    line = line.strip().lstrip("# ") if rest.strip() else ""
    titled = line and not line[0].islower() and len(line.split()) <= _TITLE_WORDS and _TITLE_END.search(line)
    return line if titled else ""
