"""Functions that check one value from a caller. Each function returns the value in the form in which it is stored, or
raises `InvalidInput` with the name of the wrong field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.types import RESERVED_KINDS, TIERS, Tier

MAX_CONTENT = 1_000_000  # code points of one entry; upload a longer text as a document
MAX_LIMIT = 10_000  # hits of one search
_MAX_DEPTH = 100
_MAX_KEYS = 100  # maximum number of metadata keys; in a filter, each key is one condition
_MAX_WHOLE = 2**63  # each smaller whole number can be stored
MAX_SOURCE_ID = 1_000  # code points of the id of a record of the host application, such as a URL
MAX_NAME = 200  # code points of a namespace, kind or session id
# A pattern for one character that is not blank. It has the same meaning in Python, in Rust, and in ECMAScript, whose
# patterns JSON Schema uses. Characters without a width are blank: soft hyphens, joiners, direction marks, fillers and
# variation selectors.
NOT_BLANK = (
    r"[^\s\u0085\u001c-\u001f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]"
)

# Metadata keys that only this program sets, because their values show who wrote a text.
AFTER_RETRIEVED_TEXT = "after_retrieved_text"  # the agent had read documents before it stored this entry
RECALLED = "recalled"  # the ids of the entries that a message repeats
RETRIEVED = "retrieved"  # whether the model had read stored text before it gave this answer
STORED_BY_KEY = "stored_by_key"  # the id of the API key that stored the entry, if this key has no right to read
WORDS_CHANGED = "words_changed"  # the text or the speaker of the message was changed later
RESERVED_METADATA = frozenset({AFTER_RETRIEVED_TEXT, RECALLED, RETRIEVED, STORED_BY_KEY, WORDS_CHANGED})

# Values of `source_type` that only this program stores, because it relies on the metadata of these entries.
VECTOR_STORE = "openai_vector_store"  # the type of an entry that has the name and the metadata of a vector store
LEARNING = "agentformer_learning"  # the type of an entry that records from which messages facts were learnt
RESERVED_SOURCE_TYPES = frozenset({VECTOR_STORE, LEARNING})

_VISIBLE = re.compile(NOT_BLANK)
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class ProgramMetadata(dict[str, Any]):
    """Metadata that this program itself has created. Only such metadata may contain the keys in `RESERVED_METADATA`.
    The metadata in a request are a plain dict, so a caller cannot set these keys."""


def is_blank(text: str) -> bool:
    """Return whether a text consists of white space and of characters without a width."""
    return _VISIBLE.search(text) is None


def content(content: Any) -> str:
    """Return the content of an entry if it is a text that is not blank and has at most `MAX_CONTENT` code points.
    Raises `InvalidInput` otherwise."""
    if isinstance(content, str) and is_blank(content):
        raise InvalidInput("content", "is empty; it must contain the text to remember")
    return stored_content(content)


def stored_content(content: Any) -> str:
    """Return the content of an entry from an archive; see `content`. A text of characters without a width is returned,
    too, because earlier releases have stored such texts. Raises `InvalidInput` for an invalid content."""
    if not isinstance(content, str):
        raise InvalidInput("content", f"must be a string, got {type(content).__name__}")
    if not content.strip():
        raise InvalidInput("content", "is empty; it must contain the text to remember")
    if len(content) > MAX_CONTENT:
        raise InvalidInput(
            "content", f"has {len(content)} characters, but the limit is {MAX_CONTENT}; upload the text as a document"
        )
    return encodable("content", content)


def text(field: str, value: Any, most: int | None = MAX_CONTENT) -> str:
    """Return the value if it is a text of at most `most` code points. The text may be empty. If `most` is None, the
    text may have any length. Raises `InvalidInput` if the value is not such a text."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a string, got {type(value).__name__}")
    if most is not None and len(value) > most:
        raise InvalidInput(field, f"has {len(value)} characters, but the limit is {most}; shorten the text")
    return encodable(field, value)


def encodable(field: str, text: str) -> str:
    """Return the text if it can be written as UTF-8. Raises `InvalidInput` otherwise."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        problem = (
            "contains half of a surrogate pair, so the text is not valid; decode the text with the correct encoding"
        )
        raise InvalidInput(field, problem) from None
    return text


def kind(value: Any) -> str:
    """Return the kind of an entry if callers may use this kind. Raises `InvalidInput` if the kind is not valid or is
    reserved for uploaded documents, messages or summaries."""
    if isinstance(value, str) and value in RESERVED_KINDS:
        problem = f"{value!r} is reserved for messages, summaries and documents; give another kind, such as fact"
        raise InvalidInput("kind", problem)
    return name("kind", value)


def name(field: str, value: Any) -> str:
    """Return the value if it is a text of 1 to `MAX_NAME` code points, not blank. Raises `InvalidInput` otherwise."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME:
        raise InvalidInput(field, f"must be a text of 1 to {MAX_NAME} characters, got {str(value)[:80]!r}")
    return encodable(field, value)


def optional_name(field: str, value: Any) -> str | None:
    """Return the value if it is None or a valid `name`. Raises `InvalidInput` otherwise."""
    return None if value is None else name(field, value)


def source_id(field: str, value: Any) -> str | None:
    """Check the id that a record has in the host application. Return the value if it is None, or a text of 1 to
    `MAX_SOURCE_ID` code points that is not blank. Raises `InvalidInput` otherwise."""
    if value is not None and (not isinstance(value, str) or not value.strip() or len(value) > MAX_SOURCE_ID):
        raise InvalidInput(field, f"must be a text of 1 to {MAX_SOURCE_ID} characters, got {str(value)[:80]!r}")
    return None if value is None else encodable(field, value)


def source_type(field: str, value: Any) -> str | None:
    """Check the type that a record has in the host application. Return the value if it is None or a name that the
    function `name` accepts. Raises `InvalidInput` otherwise, and for a type that only this program may use."""
    if isinstance(value, str) and value in RESERVED_SOURCE_TYPES:
        raise InvalidInput(field, f"{value!r} is reserved for records of AgentFormer; give another type")
    return optional_name(field, value)


def flag(field: str, value: Any) -> bool:
    """Return the value if it is True or False. Raises `InvalidInput` for any other value, such as 1."""
    if not isinstance(value, bool):
        raise InvalidInput(field, f"must be true or false, got {shown(value)}")
    return value


def names(field: str, values: Any) -> tuple[str, ...]:
    """Return a list of names as a tuple. Raises `InvalidInput` if a name is not valid, or if the value is a single
    string, because Python would treat the string as a list of letters."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput(field, f"must be a list, such as [{str(values)[:80]!r}]")
    return tuple(name(field, value) for value in values)


def shown(value: Any) -> str:
    """Return the first 80 characters of a value for a message, or a description if Python cannot convert the value to
    text (a whole number of more than 4,300 digits)."""
    try:
        return repr(value)[:80]
    except ValueError:
        return "a number with too many digits"


def limit(field: str, value: Any) -> int:
    """Return the maximum number of hits if it is a whole number from 1 to `MAX_LIMIT`, or raise `InvalidInput`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
        raise InvalidInput(field, f"must be a whole number from 1 to {MAX_LIMIT}, got {shown(value)}")
    return value


def number(field: str, value: Any) -> float:
    """Return the value if it is a number and not NaN. Raises `InvalidInput` otherwise."""
    if not isinstance(value, (int, float)) or value != value:  # NaN does not equal itself
        raise InvalidInput(field, f"must be a number, got {shown(value)}")
    return value


def tier(value: Any) -> Tier:
    """Return the value if it is one of `TIERS`, the tiers of memory. Raises `InvalidInput` otherwise."""
    for tier in TIERS:
        if value == tier:
            return tier
    raise InvalidInput("tier", f"must be one of {', '.join(TIERS)}, got {shown(value)}")


def metadata(value: Any, field: str = "metadata") -> dict[str, Any]:
    """Return a copy of the value if it is a dict of JSON values, or an empty dict if the value is None. Raises
    `InvalidInput` if the value is something else, has too many keys, or is nested too deep."""
    if value is None:
        return {}
    if value.__class__ is dict and len(value) <= _MAX_KEYS and all(map(_is_simple, value, value.values())):
        return dict(value)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(field, "must be a dictionary (a JSON object) whose keys are strings")
    if len(value) > _MAX_KEYS:
        raise InvalidInput(field, f"has {len(value)} keys, but the limit is {_MAX_KEYS}; use fewer keys")
    try:
        _encode(dict(value)).encode("utf-8")
        # JSON allows any nesting and numbers that a double cannot hold, but SQLite cannot store or compare these.
        _check_bounds(value, _MAX_DEPTH)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(field, f"must contain only JSON values: {str(error)[:120]}") from None
    return dict(value)


def _is_simple(key: Any, value: Any) -> bool:
    """Return True for a metadata value that needs no further check: a number or an ASCII text, as most values are."""
    if key.__class__ is not str or not key.isascii():
        return False
    return value.isascii() if value.__class__ is str else value.__class__ is int and -_MAX_WHOLE < value < _MAX_WHOLE


def json_object(field: str, text: str) -> dict[str, Any]:
    """Return the JSON object that `text` contains. Raises `InvalidInput` if it contains anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(field, """must be a JSON object such as '{"site": "north"}'""")
    return value


def stored_metadata(value: Any, field: str = "metadata") -> dict[str, Any]:
    """Check metadata to store, and return a copy, as the function `metadata` does. Also raises `InvalidInput` if the
    caller uses a key that only this program sets."""
    checked = metadata(value, field)
    if not isinstance(value, ProgramMetadata) and (reserved := sorted(RESERVED_METADATA & checked.keys())):
        raise InvalidInput(field, f"contains the key {reserved[0]!r}, which only AgentFormer sets; use another key")
    return checked


def program_metadata(value: Any, added: Mapping[str, Any]) -> ProgramMetadata:
    """Check the metadata of a caller with `stored_metadata`, and return them with `added`, which the program sets."""
    return ProgramMetadata({**stored_metadata(value), **added})


def changed_metadata(former: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Check metadata that replace `former`, and return them together with the reserved keys of `former`. A caller may
    repeat a reserved key with its former value. Raises `InvalidInput` for another value of a reserved key, and for
    metadata that cannot be stored."""
    own = {key: former[key] for key in RESERVED_METADATA & former.keys()}
    if isinstance(value, Mapping):
        same = {key for key in own if json.dumps(value.get(key), default=str) == json.dumps(own[key])}
        value = {key: item for key, item in value.items() if key not in same}
    return {**stored_metadata(value), **own}


def _check_bounds(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"the value is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, int):
        float(value)
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ():
        _check_bounds(inner, depth - 1)


def moment(field: str, value: Any) -> datetime | None:
    """Return a time in UTC. The value is a `datetime` or an ISO 8601 text; None is returned as None. Raises
    `InvalidInput` if the value is something else, or if the time has no time zone."""
    local = moment_in_zone(field, value)
    return local and local.astimezone(UTC)


def moment_in_zone(field: str, value: Any) -> datetime | None:
    """Return a time in its own time zone, because the calendar day depends on the zone. The value is a `datetime` or an
    ISO 8601 text; None is returned as None. Raises `InvalidInput` if the value is something else, or if the time has no
    time zone."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(
                field, f"must be ISO 8601, such as 2026-11-20T09:30:00+00:00, got {shown(value)}"
            ) from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(field, "must have a time zone, such as 2026-11-20T09:30:00+00:00")
    try:
        value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidInput(field, f"is out of range: {value}; give a date between the years 1 and 9999") from None
    return value


def period(since: Any, until: Any, prefix: str = "") -> tuple[datetime | None, datetime | None]:
    """Return the bounds of a period in UTC: the first bound is inclusive, the second is exclusive. `since` and `until`
    are each a `date`, a `datetime`, an ISO 8601 text, or None for no bound. A value without a time of day means a whole
    day in UTC, which is in the period: for `until` 2026-11-20, the second bound is the start of 2026-11-21. Raises
    `InvalidInput` for another value, and for a period that contains no moment. `prefix` is put before the field name in
    the error, such as "--" for an option."""
    first, end = _bound(f"{prefix}since", since, timedelta()), _bound(f"{prefix}until", until, timedelta(days=1))
    if first and end and first >= end:
        raise InvalidInput(f"{prefix}until", f"must be after {prefix}since, but {until} is not after {since}")
    return first, end


def _bound(field: str, value: Any, whole_day: timedelta) -> datetime | None:
    """Return a bound of a period in UTC, or None. If the value has no time of day, add `whole_day`: zero for the first
    bound, one day for the second."""
    day = value if isinstance(value, date) and not isinstance(value, datetime) else None
    if isinstance(value, str):
        with suppress(ValueError):
            day = date.fromisoformat(value)
    if day is not None:
        with suppress(OverflowError):
            return datetime(day.year, day.month, day.day, tzinfo=UTC) + whole_day
        return datetime.max.replace(tzinfo=UTC)  # the last day of the calendar
    try:
        return moment(field, value)
    except InvalidInput as error:
        problem = str(error).partition(": ")[2]
        raise InvalidInput(field, f"{problem}; or give a day, such as 2026-11-20") from None


def salience(value: Any, field: str = "salience") -> float:
    """Return the salience as a float if it is a number from 0 to 1. Raises `InvalidInput` otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidInput(field, f"must be a number from 0 to 1, got {shown(value)}")
    return float(value)
