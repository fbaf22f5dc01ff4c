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

WEIGHT = 0.8  # of the list beside words and vectors; chosen on a development half, see docs/BENCHMARKS.md
_HEADS = 3  # hits whose texts are read for names,
_READ = 4_000  # and so many code points of each
_LOOKED_AT = 200  # hits whose titles are looked for
_TITLE = range(4, 101)  # code points
_BEARERS = 2  # entries that may have a title: what more have, names a document or a subject, and none of its parts
_UNENDED = re.compile(r"[^.,;:!?]$")  # a first line that is a title
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")  # "Mercury (planet)" is called Mercury

_TITLES = (
    "SELECT num, CASE WHEN document_id IS NULL THEN title ELSE '' END, substr(content, 1, 102) FROM entries "
    "WHERE num IN (SELECT value FROM json_each(?))"
)
_TEXTS = "SELECT num, substr(content, 1, ?) FROM entries WHERE num IN (SELECT value FROM json_each(?))"


def mentioned(connection: sqlite3.Connection, ranked: Sequence[int]) -> list[int]:
    """Those of `ranked` entries, best first, that one of the first of them names by title: first those that the best
    one names, each in the order of `ranked`."""
    ranked = ranked[:_LOOKED_AT]
    names = _names(connection, ranked)
    if not names:
        return []
    texts = dict(connection.execute(_TEXTS, [_READ, json.dumps(ranked[:_HEADS])]).fetchall())
    found: dict[int, None] = {}
    for head in ranked[:_HEADS]:
        text = texts.get(head, "")
        for num in ranked:
            name = names.get(num, "")
            if name and num != head and name != names.get(head) and _names_it(text, name):
                found.setdefault(num)
    return list(found)


def _names(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, str]:
    """What entries are called, where that tells them apart."""
    rows = connection.execute(_TITLES, [json.dumps(list(nums))]).fetchall()
    names = {num: _QUALIFIER.sub("", (title or _first_line(content)).strip()) for num, title, content in rows}
    bearers = Counter(names.values())
    return {num: name for num, name in names.items() if len(name) in _TITLE and bearers[name] <= _BEARERS}


def _first_line(content: str) -> str:
    """The line that a text begins with, where it looks like a title."""
    line, broken, rest = content.partition("\n")
    return line.lstrip("# ") if broken and rest.strip() and _UNENDED.search(line.rstrip()) else ""


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
