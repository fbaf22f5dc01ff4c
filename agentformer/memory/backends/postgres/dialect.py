"""The dialect of the shared statements. The modules of `records/` write their statements for SQLite; this module
translates a statement to PostgreSQL, and the parameters with it. Functions that only SQLite has are functions of our
schema, see `schema`.

PostgreSQL text cannot contain the character NUL. A text is therefore stored with NUL written as two characters, and
read back without loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

ESCAPE = "\uf8f0"  # of the private use area; a text that contains it is escaped, too
_KEYS = {
    "meta": "key",
    "leases": "name",
    "absent_documents": "id",
    "moving": "entry",
    "points": "seq",
    "derived": "entry",
}
_COLUMNS = {
    "meta": ("value", "checksum"),
    "leases": ("holder", "ends_at", "micros"),
    "absent_documents": ("sha256", "upload"),
    "moving": ("attempts", "last_error"),
    "points": ("token",),
    "derived": ("version", "source", "title", "language", "days", "facts", "message", "checksum"),
}
# Each rule: a pattern of SQLite, and its replacement. `@` marks a parameter that is a JSON list.
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\bNOT IN \(SELECT value FROM json_each\((\?\d*)\)\)", r"<> ALL(@\1)"),
        (r"\bIN \(SELECT value FROM json_each\((\?\d*)\)\)", r"= ANY(@\1)"),
        (r"\bJOIN json_each\(([^)]*)\) AS (\w+)", r"CROSS JOIN LATERAL json_items(\1) AS \2"),
        (r"\bjson_each\(", "json_items("),
        (r"(\w\.num) = (json_extract\([^)]*\))", r"\1 = \2::bigint"),
        (r"m\.type IN \('integer', 'real'\) AND m\.value (=|[<>]=?) (\?)", r"m.number \1 (\2)::text::numeric"),
        (r"\bCOLLATE BINARY\b", 'COLLATE "C"'),
        (r"\bINDEXED BY \w+", ""),
        (r"\bCROSS JOIN entries ON\b", "JOIN entries ON"),
        (r"(?:(?<=[\s(])|^)\+(?=[a-z])", ""),  # a hint for SQLite's planner
        (r"\bIS (\?\d*|:\w+|\w\.\w+)", r"IS NOT DISTINCT FROM \1"),
        (r"\bmax\(coalesce\(", "greatest(coalesce("),
        (r"\bgroup_concat\(num\)", "string_agg(num::text, ',')"),
    )
)
_MARKS = re.compile(r"\b(NOT )?IN \((\?(?:,\?)*)\)")
_PARAMETER = re.compile(r"'(?:[^']|'')*'|#\d+#|@?\?\d*|(?<![:\w]):[a-z]\w*|%")
_REPLACE = re.compile(r"\s*INSERT OR REPLACE INTO (\w+)")
_IGNORE = re.compile(r"\s*INSERT OR IGNORE INTO (\w+)")


class Statement(NamedTuple):
    """A statement for PostgreSQL. `keys` contains for each of its parameters the index or the name of the value in the
    parameters of the original statement; `lists` contains the keys of the values that are JSON lists."""

    text: str
    keys: tuple[int | str | slice, ...]
    lists: frozenset[int | str]

    def bind(self, values: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """Return the values in the order of the parameters of this statement. The values of a slice are one list."""
        return [
            [*values[key]] if isinstance(key, slice) else _value(values[key], key in self.lists)  # type: ignore[index]
            for key in self.keys
        ]


def _value(value: Any, is_list: bool) -> Any:
    if is_list:
        return json.loads(value)
    return int(value) if isinstance(value, bool) else value  # SQLite has no boolean


@lru_cache(maxsize=1024)
def translate(sql: str) -> Statement:
    """Return the statement of PostgreSQL that does what `sql` does in SQLite."""
    end = ""
    if replacing := _REPLACE.match(sql):
        table = replacing[1]
        changes = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS[table])
        sql, end = sql.replace("OR REPLACE ", "", 1), f" ON CONFLICT ({_KEYS[table]}) DO UPDATE SET {changes}"
    elif _IGNORE.match(sql):
        sql, end = sql.replace("OR IGNORE ", "", 1), " ON CONFLICT DO NOTHING"
    for pattern, replacement in _RULES:
        sql = pattern.sub(replacement, sql)
    sql = _MARKS.sub(_as_list, sql)  # one statement for any number of values
    keys: list[int | str | slice] = []
    lists: set[int | str] = set()
    bound = 0  # values of the original statement so far

    def parameter(match: re.Match[str]) -> str:
        nonlocal bound
        found = match[0]
        if found.startswith("'") or found == "%":
            return found.replace("%", "%%")
        if found.startswith("#"):
            keys.append(slice(bound, bound + int(found[1:-1])))
            bound = keys[-1].stop  # type: ignore[union-attr]
            return "%s"
        name = found.lstrip("@")
        if name.startswith(":"):
            key: int | str = name[1:]
        else:
            key = int(name[1:]) - 1 if len(name) > 1 else bound
        bound += 1
        keys.append(key)
        if found.startswith("@"):
            lists.add(key)
        return "%s"

    text = _PARAMETER.sub(parameter, sql) + end
    return Statement(text, tuple(keys), frozenset(lists))


def _as_list(match: re.Match[str]) -> str:
    return f"{'<> ALL' if match[1] else '= ANY'}(#{match[2].count('?')}#)"


def escape(text: str) -> str:
    """Return the text as PostgreSQL stores it, without NUL."""
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, ESCAPE + "1").replace("\0", ESCAPE + "0")


def unescape(text: str) -> str:
    """Return the text that `escape` has changed."""
    if ESCAPE not in text:
        return text
    return text.replace(ESCAPE + "0", "\0").replace(ESCAPE + "1", ESCAPE)
