"""What the best hits name: an entry whose title stands in one of them bears on the question, too.

"Where was the director of X born?" is found by the entry on X, which names its director, whose own entry shares no
word with the question. One step along such names, as a reader follows a link, and only to entries that the search has
found by itself, however far behind.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

WEIGHT = 0.8  # of the list beside words and vectors; chosen on a development half, see docs/BENCHMARKS.md
_HEADS = 3  # hits whose texts are read for names,
_READ = 4_000  # and so many code points of each
_LOOKED_AT = 200  # hits whose titles are looked for
_TITLE = range(4, 101)  # code points
_BEARERS = 2  # entries that may have a title: what more have, names a document or a subject, and none of its parts
_LINE_WORDS = 8  # of a first line that is a title
_UNENDED = re.compile(r"[^\s.,;:!?]$")
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")  # "Mercury (planet)" is called Mercury

_TITLES = (
    "SELECT num, document_id, CASE WHEN document_id IS NULL THEN title ELSE '' END, "
    "CASE WHEN document_id IS NULL OR (span_start = 0 AND coalesce(page, 1) = 1) "
    "THEN substr(content, 1, 102) ELSE '' END "
    "FROM entries WHERE num IN (SELECT value FROM json_each(?))"
)
_TEXTS = "SELECT num, substr(content, 1, ?) FROM entries WHERE num IN (SELECT value FROM json_each(?))"


class _Named(NamedTuple):
    name: str
    document: str | None


_NOBODY = _Named("", None)


def mentioned(connection: sqlite3.Connection, ranked: Sequence[int]) -> list[int]:
    """Those of `ranked` entries, best first, that one of the first of them names by title: first those that the best
    one names, each in the order of `ranked`."""
    ranked = ranked[:_LOOKED_AT]
    names = _names(connection, ranked)
    if not any(_bears(named.name) for named in names.values()):
        return []
    texts = dict(connection.execute(_TEXTS, [_READ, json.dumps(ranked[:_HEADS])]).fetchall())
    found: dict[int, None] = {}
    for head in ranked[:_HEADS]:
        own = names.get(head, _NOBODY)
        for num, named in ((num, names[num]) for num in ranked if num in names):
            apart = (
                num != head and named.name != own.name and (named.document is None or named.document != own.document)
            )
            if apart and _bears(named.name) and _names_it(texts.get(head, ""), named.name):
                found.setdefault(num)
    return list(found)


def _names(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, _Named]:
    """What entries are called, "" where that does not tell them apart, and the document that they are of."""
    rows = connection.execute(_TITLES, [json.dumps(list(nums))]).fetchall()
    names = {num: _QUALIFIER.sub("", (title or _first_line(content)).strip()) for num, _, title, content in rows}
    bearers = Counter(names.values())
    return {
        num: _Named(names[num] if bearers[names[num]] <= _BEARERS else "", document) for num, document, _, _ in rows
    }


def _bears(name: str) -> bool:
    return len(name) in _TITLE


def _first_line(content: str) -> str:
    """The line that a text begins with, where it looks like a title."""
    line, broken, rest = content.partition("\n")
    line = line.strip().lstrip("# ")
    titled = line and not line[0].islower() and len(line.split()) <= _LINE_WORDS and _UNENDED.search(line)
    return line if titled and broken and rest.strip() else ""


def _names_it(text: str, name: str) -> bool:
    """Does the name stand in the text, as whole words, written the same?"""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        before, after = text[at - 1 : at] if at else "", text[end : end + 1]
        if not (before.isalnum() and name[0].isascii()) and not (after.isalnum() and name[-1].isascii()):
            return True
        at = text.find(name, at + 1)
    return False
