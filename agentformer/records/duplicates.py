"""Detection of new entries that duplicate a stored entry. Only `add_equal_texts` reads the database."""

from __future__ import annotations

import json
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from agentformer.records.codec import from_row
from agentformer.records.fields import AFTER_RETRIEVED_TEXT, STORED_BY_KEY
from agentformer.types import Connection, MemoryEntry, Row, Statement

# Entries of these kinds, and all entries of the tiers episodic and working, are stored again if their content is
# repeated. For documents and their parts, the bytes of the file are compared instead.
REPEATABLE_KINDS = frozenset({"chunk", "document", "message", "page"})

_PLACE_FIELDS = (
    *("tier", "kind", "namespace", "session_id", "agent_id", "user_id", "project", "source_type", "source_id"),
    *("valid_from", "valid_to", "expires_at"),
)
_DETAIL_FIELDS = ("title", "speaker", "category", "occurred_at", "parent_id", "pair_id", "derived_from")
_Place = tuple[Any, ...]  # the result of `_place`
_DEFAULT = ("salience", 1.0)  # this default is not compared
_encode = json.JSONEncoder(sort_keys=True).encode
_NORMALIZED = 1_000  # code points; for a run of combining marks, the time of normalization is quadratic
_GROUP = 500  # texts of one statement
_MANY = 8  # from this number of texts on, one statement for all of them is faster
_COMPARED = (
    f"kind NOT IN ({', '.join(repr(kind) for kind in sorted(REPEATABLE_KINDS))}) "
    "AND archived_at IS NULL AND superseded_by IS NULL"
)
# SQLite uses the index only if the kinds are written as in the index definition, and the content is compared with IS.
_SAME_START = Statement(
    sqlite="SELECT * FROM entries WHERE namespace = ? AND substr(content, 1, 100) = substr(?, 1, 100) "
    f"AND content IS ? AND {_COMPARED}",
    postgres="SELECT * FROM entries WHERE namespace = %s AND substr(content, 1, 100) = substr(%s, 1, 100) "
    f"AND content = %s AND {_COMPARED}",
)
# The same query for many texts, which are given as a list.
_SAME_STARTS = Statement(
    sqlite="SELECT e.* FROM json_each(?) AS t CROSS JOIN entries AS e ON e.namespace = ? "
    f"AND substr(content, 1, 100) = substr(t.value, 1, 100) AND content IS t.value AND {_COMPARED}",
    postgres="SELECT e.* FROM unnest(%s::text[]) AS t (text) CROSS JOIN LATERAL (SELECT * FROM entries "
    f"WHERE namespace = %s AND substr(content, 1, 100) = substr(t.text, 1, 100) AND content = t.text AND {_COMPARED} "
    "OFFSET 0) AS e",
)


def comparable(content: str) -> str:
    """Return the content in the Unicode form NFC, in which all spellings of a text are equal; see `_normalized`."""
    return _normalized("NFC", content)


def _normalized(form: Literal["NFC", "NFD"], content: str) -> str:
    """Return the content in a Unicode form, in which texts that differ only in their spelling are equal. A text of more
    than `_NORMALIZED` code points is returned unchanged, because its conversion could take too long."""
    return content if len(content) > _NORMALIZED or content.isascii() else unicodedata.normalize(form, content)


def is_duplicate(new: MemoryEntry, stored: MemoryEntry) -> bool:
    """Return whether the entry `new` only repeats the entry `stored`: both have the same content, the same owner fields
    (such as namespace, session and user), the same validity and expiry, and the same details (such as title and
    metadata). A detail that is empty in `new` is not compared. Return False if `is_repeatable(new)` is True, or if
    `stored` is archived or superseded.

    An entry of an API key without the right to read is compared only with entries of the same key. Otherwise, `store`
    could return an entry of this key to another caller who stores the same text."""
    known = KnownEntries()
    known.add(stored)
    return known.find(new) is not None


class KnownEntries:
    """A set of stored entries. `find` looks up the stored entry that a new entry duplicates (see `is_duplicate`), and
    is fast even if many stored entries have the same text."""

    def __init__(self) -> None:
        self._details: defaultdict[_Place, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
        # Key: the result of `_place`, and the names of the compared details. Value: the values of these details -> the
        # lowest id.
        self._ids: dict[tuple[_Place, tuple[str, ...]], dict[tuple[Any, ...], str]] = {}
        self._names: defaultdict[_Place, list[tuple[str, ...]]] = defaultdict(list)
        # The last searched entry, because it is often added next.
        self._last: tuple[MemoryEntry, _Place, dict[str, Any]] | None = None

    def add(self, entry: MemoryEntry) -> None:
        """Add a stored entry. An archived or superseded entry is not added, because no new entry duplicates it."""
        if entry.archived_at is not None or entry.superseded_by is not None:
            return
        place, details = self._compared(entry)
        self._details[place].append((entry.id, details))
        for names in self._names[place]:
            _add_id(self._ids[place, names], names, entry.id, details)

    def find(self, entry: MemoryEntry) -> str | None:
        """Return the lowest id of the entries that the new entry duplicates, or None."""
        if is_repeatable(entry):
            return None
        place, details = self._compared(entry)
        names = tuple(name for name, value in details.items() if value is not None and (name, value) != _DEFAULT)
        if (ids := self._ids.get((place, names))) is None:
            ids = self._ids[place, names] = {}
            self._names[place].append(names)
            for stored_id, stored in self._details[place]:
                _add_id(ids, names, stored_id, stored)
        return ids.get(tuple(details[name] for name in names))

    def _compared(self, entry: MemoryEntry) -> tuple[_Place, dict[str, Any]]:
        if self._last is None or self._last[0] is not entry:
            self._last = entry, _place(entry), _details(entry)
        return self._last[1:]


def is_repeatable(entry: MemoryEntry) -> bool:
    """Return whether an entry is stored even if a stored entry has the same content. This is the case for messages, for
    documents and their parts, and for all entries of the tiers `episodic` and `working`."""
    return entry.kind in REPEATABLE_KINDS or entry.tier in ("episodic", "working")


def have_distinct_texts(entries: Sequence[MemoryEntry]) -> bool:
    """Return whether all these entries have different contents. In this case, none of them duplicates another."""
    return len({comparable(entry.content) for entry in entries}) == len(entries)


def add_equal_texts(
    connection: Connection, known: KnownEntries, entries: Sequence[MemoryEntry], ignoring: Collection[int]
) -> int:
    """Add to `known` the stored entries that have the same content as one of `entries`, in any Unicode spelling. Stored
    entries whose row numbers are in `ignoring` are left out. Return the number of added entries."""
    count = 0
    texts: defaultdict[str, dict[str, None]] = defaultdict(dict)  # the distinct texts of each namespace
    for entry in entries:
        if not is_repeatable(entry):
            content = entry.content
            spellings = {content, *(_normalized(form, content) for form in ("NFC", "NFD"))}
            texts[entry.namespace].update(dict.fromkeys(spellings))
    for namespace, contents in texts.items():
        for row in _with_texts(connection, namespace, [*contents]):
            if row["num"] not in ignoring:
                known.add(from_row(row))
                count += 1
    return count


def _with_texts(connection: Connection, namespace: str, texts: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of the entries of a namespace whose content is one of these texts."""
    many = [text for text in texts if len(texts) >= _MANY and "\0" not in text]  # see `Statement` about a NUL
    for text in [text for text in texts if len(texts) < _MANY or "\0" in text]:
        yield from connection.run(_SAME_START, [namespace, text, text])
    for start in range(0, len(many), _GROUP):
        yield from connection.run(_SAME_STARTS, [many[start : start + _GROUP], namespace])


def _add_id(ids: dict[tuple[Any, ...], str], names: Sequence[str], entry_id: str, details: Mapping[str, Any]) -> None:
    values = tuple(details[name] for name in names)
    ids[values] = min(entry_id, ids.get(values, entry_id))


def _place(entry: MemoryEntry) -> _Place:
    """Return the values that must be equal for an entry and its duplicate: the content, the owner fields, the validity
    and expiry, and the id of the API key that stored the entry. This id is None if the key has the right to read."""
    owner = (getattr(entry, name) for name in _PLACE_FIELDS)
    return (comparable(entry.content), entry.metadata.get(STORED_BY_KEY), *owner)


def _details(entry: MemoryEntry) -> dict[str, Any]:
    """Return the details of an entry in a form that can be compared; the value of an empty detail is None. Metadata are
    compared as JSON, because Python treats True and 1 as equal."""
    metadata = {
        key: item
        for key, item in entry.metadata.items()
        if key != STORED_BY_KEY and not (key == AFTER_RETRIEVED_TEXT and item is True)
    }
    return {
        **{name: getattr(entry, name) or None for name in _DETAIL_FIELDS},
        "metadata": _encode(metadata) if metadata else None,
        "salience": entry.salience,
    }
