"""Reads datasets from a folder. A dataset consists of passages, and of questions with the ids of the passages that
answer them.

Each line of `corpus.jsonl` is a passage, `{"id": "p1", "text": "...", "meta": {...}}`. Each line of `queries.jsonl` is
a question, `{"id": "q1", "text": "...", "relevant": ["p1"], "meta": {...}}`. `meta` is optional. A question without
`relevant` ids has no answer in the corpus. The module `corpus_loader` describes the keys of `meta`.

Dates may have the notations of common corpora: ISO 8601, "1:56 pm on 8 May, 2023", "8.5.2023 13.56", or seconds since
1970.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agentformer.errors import InvalidInput
from agentformer.rag.documents import Document
from agentformer.records import fields
from agentformer.records.integrity.files import kind_of
from agentformer.text.dates.notation import find_dates
from agentformer.types import DocumentText

# The keys for the date in the `meta` of a passage. The first key that is present is used.
MOMENT = ("date_time", "date", "occurred_at", "timestamp")
_LONGEST = 100  # code points of a date and a time
_CLOCK = re.compile(
    r"(?<![\d.:])(?P<hour>\d{1,2})(?:[:.h](?P<minute>\d{2})(?::(?P<second>\d{2}))?)?[ \u00a0\u202f]{0,2}"
    r"(?P<half>[ap]\.?m\b\.?)?(?![\d.]*\d)",
    re.IGNORECASE,
)
_SECONDS = range(10**8, 10**11)  # since 1970: from 1973 to 5138
_MILLISECONDS = range(10**11, 10**14)


def date_value(meta: Mapping[str, Any]) -> Any:
    """Return the date in the `meta` of a passage, or None. The date is not parsed; see `parse_moment`."""
    return next((meta[name] for name in MOMENT if meta.get(name) not in (None, "")), None)


def parse_moment(value: Any) -> datetime | None:
    """Return a date and time in UTC. A value without a time zone is read as UTC. Return None if the day is not certain:
    the value has no date or no year, or has an ambiguous date such as "05/08/2023"."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _since_1970(value)
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    text = value.strip()
    if text.isdecimal() and len(text) > len("20230508"):
        return _since_1970(int(text))
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return _moment_in(text)


def _since_1970(value: float) -> datetime | None:
    with suppress(ValueError, OverflowError, OSError):
        if int(value) in _SECONDS:
            return datetime.fromtimestamp(value, UTC)
        if int(value) in _MILLISECONDS:
            return datetime.fromtimestamp(value / 1000, UTC)
    return None


def _moment_in(text: str) -> datetime | None:
    """Return the moment in a text that names exactly one certain day, with its time of day or midnight, or None."""
    dates = [
        (mention, day)
        for mention in find_dates(text)
        if len(set(mention.readings)) == 1 and (day := mention.readings[0]).year and day.month and day.day
    ]
    if len(dates) != 1:
        return None
    mention, day = dates[0]
    clock = _clock(text[: mention.start]) or _clock(text[mention.end :]) or time()
    with suppress(ValueError):
        return datetime.combine(datetime(day.year, day.month, day.day), clock, UTC)
    return None


def _clock(text: str) -> time | None:
    """Return the first time of day in a text, such as "13:56", "13.56", "1:56 pm" or "2 p.m.". A number counts as a
    time only if minutes, "am" or "pm" follow."""
    for match in _CLOCK.finditer(text):
        if not (match["minute"] or match["half"]):
            continue
        hour = int(match["hour"])
        if match["half"]:
            if not 1 <= hour <= 12:
                continue
            hour = hour % 12 + (12 if match["half"][0] in "pP" else 0)
        with suppress(ValueError):
            return time(hour, int(match["minute"] or 0), int(match["second"] or 0))
    return None


CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"
MAX_LINE = 64 * 1024 * 1024  # bytes of one line, so that a file without line ends does not fill the memory
_MAX_REPORTED = 10  # number of bad lines that a message lists


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that may answer a question."""

    id: str
    text: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the ids of the passages that answer it; none if no passage answers the question."""

    id: str
    text: str
    relevant: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Passages and questions. `notes` report lines or values that were ignored. If the passages are pages of documents,
    `documents` contains these documents, which are stored instead of the passages."""

    name: str
    passages: tuple[Passage, ...]
    questions: tuple[Question, ...] = ()
    notes: tuple[str, ...] = ()
    documents: tuple[tuple[Document, DocumentText], ...] = ()

    @property
    def answerable(self) -> tuple[Question, ...]:
        """The questions that have at least one relevant passage."""
        return tuple(question for question in self.questions if question.relevant)

    def asking(self, questions: Sequence[Question]) -> Dataset:
        """Return a dataset with the same passages and these questions."""
        return replace(self, questions=tuple(questions))

    def digest(self, *, questions: bool = True) -> str:
        """Return a hexadecimal hash of the passages and, if `questions` is true, of the questions."""
        digest = hashlib.blake2b(digest_size=16)
        for passage in self.passages:
            digest.update(_canonical(passage.id, passage.text, dict(passage.meta)))
        for document, text in self.documents:
            headings = [[heading.text for heading in page.headings] for page in text.pages]
            digest.update(_canonical(document.name, document.sha256, dict(document.metadata), text.title, headings))
        for question in self.questions if questions else ():
            digest.update(_canonical(question.id, question.text, list(question.relevant), dict(question.meta)))
        return digest.hexdigest()


def read_dataset(folder: Path, *, questions: bool = True) -> Dataset:
    """Read the dataset in a folder. If `questions` is false, read only the passages.

    A relevant id that no passage has is ignored, and `notes` reports it. Raises `InvalidInput` if lines are invalid.
    The message names the file and the line number of the first ten invalid lines.
    """
    if kind_of(folder, "DIR") != "folder":
        raise InvalidInput("DIR", f"{folder} is not a folder; give a folder with {CORPUS} and {QUERIES}")
    passages = _read(folder / CORPUS, _passage)
    if not passages:
        raise InvalidInput("DIR", f"""{folder / CORPUS} has no passages; write lines like {{"id": ..., "text": ...}}""")
    empty = sum(not passage.text.strip() for passage in passages)
    if empty == len(passages):
        raise InvalidInput("DIR", f"every passage of {folder / CORPUS} is empty; write a text in each line")
    notes = [f"{empty} passages of {CORPUS} are empty and cannot be found"] if empty else []
    dates = [value for passage in passages if (value := date_value(passage.meta)) is not None]
    if unreadable := [value for value in dates if parse_moment(value) is None]:
        notes.append(
            f"{len(unreadable)} dates of {CORPUS} cannot be read and were ignored, such as {unreadable[0]!r:.80}"
        )
    asked = _questions(folder / QUERIES, {passage.id for passage in passages}, notes) if questions else ()
    return Dataset(folder.resolve().name, tuple(passages), tuple(asked), tuple(notes))


def _questions(path: Path, ids: set[str], notes: list[str]) -> list[Question]:
    """Read the questions. Relevant ids that are not in `ids` are ignored, and reported in `notes`."""
    questions = _read(path, _question)
    if not questions:
        message = f'{path} has no questions; write lines like {{"id": ..., "text": ..., "relevant": [...]}}'
        raise InvalidInput("DIR", message)
    lost = [passage_id for question in questions for passage_id in question.relevant if passage_id not in ids]
    if not lost:
        return questions
    answered = [
        replace(q, relevant=tuple(passage_id for passage_id in q.relevant if passage_id in ids)) for q in questions
    ]
    if not any(question.relevant for question in answered):
        raise InvalidInput(
            "DIR",
            f"{CORPUS} has none of the ids that {QUERIES} lists as relevant, such as {lost[0]!r:.80}; use the same ids "
            "in both files",
        )
    notes.append(f"{len(lost)} relevant ids of {QUERIES} are not in {CORPUS} and were ignored, such as {lost[0]!r:.80}")
    return answered


def sampled(questions: Sequence[Question], most: int) -> tuple[Question, ...]:
    """Return at most `most` questions, at even distances in the list. If `most` is 0, return all questions."""
    if not most or len(questions) <= most:
        return tuple(questions)
    return tuple(questions[n * len(questions) // most] for n in range(most))


class Halves(NamedTuple):
    """The questions with which settings are chosen (`development`), and those with which they are tested (`test`)."""

    development: tuple[Question, ...]
    test: tuple[Question, ...]


def halves(questions: Sequence[Question], seed: int = 0) -> Halves:
    """Divide the questions that have an answer into two halves. Questions with a common relevant passage, directly or
    through other questions, are in the same half, because a setting that is good for one of them is probably good for
    all. A hash of an id and `seed` decides, so the halves are the same on every machine and for every order of the
    questions. The order of the questions stays the same in each half."""
    answerable = [question for question in questions if question.relevant]
    leader = leaders(answerable)
    divided: tuple[list[Question], list[Question]] = [], []
    for question in answerable:
        name = f"{seed}:{leader[question.id]}"
        divided[hashlib.blake2b(name.encode(), digest_size=1).digest()[0] & 1].append(question)
    return Halves(tuple(divided[0]), tuple(divided[1]))


def leaders(questions: Sequence[Question]) -> dict[str, str]:
    """Return question id -> group id, which is the smallest question id of the group. Questions are in the same group
    if they have a common relevant passage, directly or through other questions (union-find: Tarjan and van Leeuwen
    1984)."""
    above = {question.id: question.id for question in questions}

    def top(name: str) -> str:
        while above[name] != name:
            above[name] = name = above[above[name]]
        return name

    first: dict[str, str] = {}  # passage -> a question that it answers
    for question in questions:
        for passage in question.relevant:
            one, other = sorted((top(question.id), top(first.setdefault(passage, question.id))))
            above[other] = one
    return {question.id: top(question.id) for question in questions}


Row = TypeVar("Row", Passage, Question)


def _read(path: Path, parse: Callable[[Mapping[str, Any]], Row]) -> list[Row]:
    """Return the rows of a file in order. Raises `InvalidInput` with the first `_MAX_REPORTED` invalid lines."""
    rows: dict[str, tuple[int, Row]] = {}  # id -> line and row
    bad: list[str] = []
    more = 0
    try:
        for number, line in _lines(path):
            try:
                row = parse(_object(line))
                if row.id in rows:
                    first, _ = rows[row.id]
                    raise ValueError(f"line {first} has the same id {row.id!r:.80}; give each line its own id")
                rows[row.id] = number, row
            except ValueError as error:  # InvalidInput is a ValueError
                more += len(bad) >= _MAX_REPORTED
                bad += [f"{path.name}:{number}: {error}"] if len(bad) < _MAX_REPORTED else []
    except FileNotFoundError:
        raise InvalidInput("DIR", f"{path} does not exist; a folder of questions has {CORPUS} and {QUERIES}") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput("DIR", f"{path} cannot be read ({reason}); check the path") from None
    if bad:
        rest = f"; and {more} more lines" if more else ""
        raise InvalidInput("DIR", f"correct or remove these lines: {'; '.join(bad)}{rest}")
    return [row for _, row in rows.values()]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, content) for each line that is not blank. The first line has the number 1."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
            if len(line) > MAX_LINE:
                place = f"{path.name}:{number}"
                raise InvalidInput(
                    "DIR", f"{place}: the line has more than {MAX_LINE} bytes; write one object per line"
                )
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield number, line


def _object(line: bytes) -> Mapping[str, Any]:
    """Parse a line as a JSON object. Raises `ValueError` with the reason if the line is invalid."""
    try:
        given = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("the line is not UTF-8; convert the file to UTF-8") from None
    except (ValueError, RecursionError):
        raise ValueError("the line is not JSON; write one object per line") from None
    if not isinstance(given, dict):
        raise ValueError('the line is not a JSON object; write {"id": ..., "text": ...}')
    return given


def _passage(given: Mapping[str, Any]) -> Passage:
    return Passage(_id(given.get("id"), "id"), _text(given), _meta(given))


def _question(given: Mapping[str, Any]) -> Question:
    text = _text(given)
    if not text.strip():
        raise ValueError("'text' is empty; write the question")
    relevant = given.get("relevant")
    relevant = [] if relevant is None else relevant
    if not isinstance(relevant, list):
        raise ValueError("'relevant' must be a list of passage ids")
    ids = dict.fromkeys(_id(passage_id, "relevant") for passage_id in relevant)
    return Question(_id(given.get("id"), "id"), text, tuple(ids), _meta(given))


def _id(value: Any, name: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name!r} must be a non-empty text or a whole number, got {value!r:.80}")
    fields.encodable(name, value)
    return value


def _text(given: Mapping[str, Any]) -> str:
    text = given.get("text")
    if text is None:
        raise ValueError("'text' is missing; write the text")
    if not isinstance(text, str):
        raise ValueError(f"'text' must be a text, got {type(text).__name__}")
    return fields.encodable("text", text)


def _meta(given: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = given.get("meta")
    if meta is None:
        return {}
    if not isinstance(meta, dict):
        raise ValueError("'meta' must be an object")
    fields.encodable("meta", json.dumps(meta, ensure_ascii=False))
    return meta


def _canonical(*values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"
