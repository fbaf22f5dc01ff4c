"""Translation of SQL statements. The modules of `records/` write their statements for SQLite; this module translates a
statement and its parameters for PostgreSQL. Functions that only SQLite has are defined in the schema; see `schema`.

PostgreSQL text cannot contain the character NUL. In a stored text, NUL is therefore replaced by two characters, and it
is restored when the text is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

ESCAPE = "\uf8f0"  # a character of the private use area; if a text contains it, it is escaped, too
_KEYS = {
    "meta": "key",
    "leases": "name",
    "absent_documents": "id",
    "moving": "entry_namespace, entry",
    "points": "seq",
    "derived": "entry_namespace, entry",
}
_COLUMNS = {
    "meta": ("value", "checksum"),
    "leases": ("holder", "ends_at", "micros"),
    "absent_documents": ("sha256", "upload"),
    "moving": ("attempts", "last_error"),
    "points": ("token",),
    "derived": ("version", "source", "title", "language", "days", "facts", "message", "checksum"),
}
_PLACE = "SELECT namespace, num, {} FROM entry_places WHERE num = ?1"


def _derived(match: re.Match[str]) -> str:
    columns = match[1].split(", ")
    marks = ", ".join(f"?{n}" for n in range(2, len(columns) + 1))
    return f"INSERT OR REPLACE INTO derived (entry_namespace, {', '.join(columns)}) {_PLACE.format(marks)}"


# In PostgreSQL, all keys begin with the namespace (see `schema`). A rule is a pattern of a statement of `records/`, and
# the same statement with the namespace.
_NAMESPACED: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"^INSERT INTO entries \((.*)\) VALUES \((.*)\) ON CONFLICT \(id\) DO NOTHING( RETURNING num)?$",
            r"WITH place AS (INSERT INTO entry_places (id, namespace) VALUES (:id, :namespace) ON CONFLICT (id) "
            r"DO NOTHING RETURNING num) INSERT INTO entries (num,\1) SELECT place.num,\2 FROM place\3",
        ),
        (
            r"^(UPDATE entries SET .*)\bnamespace = :namespace,(.*) WHERE id = :id$",
            r"\1\2 WHERE namespace = :namespace AND id = :id",
        ),
        (r"^DELETE FROM entries\b", "DELETE FROM entry_places"),
        (
            r"^INSERT INTO history VALUES \(\?, \?, \?, \?\)$",
            f"INSERT INTO history (entry_namespace, entry, version, state, checksum) {_PLACE.format('?2, ?3, ?4')}",
        ),
        (
            r"^INSERT INTO pending VALUES \(\?, 1, \?, \?\) ON CONFLICT \(entry\)",
            "INSERT INTO pending (entry_namespace, entry, attempts, last_error, refused) "
            f"{_PLACE.format('1, ?2, ?3')} ON CONFLICT (entry_namespace, entry)",
        ),
        (
            r"^INSERT OR REPLACE INTO moving VALUES \(\?, 0, ''\)$",
            "INSERT OR REPLACE INTO moving (entry_namespace, entry, attempts, last_error) " + _PLACE.format("0, ''"),
        ),
        (r"^INSERT OR REPLACE INTO derived \((.*)\) VALUES \(.*\)$", _derived),
        (
            r"^INSERT INTO moving SELECT num, 0, '' FROM entries",
            "INSERT INTO moving (entry_namespace, entry, attempts, last_error) "
            "SELECT namespace, num, 0, '' FROM entries",
        ),
        (
            r"^INSERT INTO pending SELECT entry, attempts, last_error, 1 FROM moving",
            "INSERT INTO pending (entry_namespace, entry, attempts, last_error, refused) "
            "SELECT entry_namespace, entry, attempts, last_error, 1 FROM moving",
        ),
        (
            r"^INSERT OR IGNORE INTO pending SELECT num, 0, ('[^']*'), 0 FROM entries",
            r"INSERT OR IGNORE INTO pending (entry_namespace, entry, attempts, last_error, refused) "
            r"SELECT namespace, num, 0, \1, 0 FROM entries",
        ),
        # several namespaces may store the vector of the same text; only one is read
        (
            r"^SELECT hash, id FROM vectors WHERE space = \? AND hash IN \((\?(?:,\?)*)\)$",
            lambda match: (
                "SELECT v.hash, v.id FROM (SELECT ?::bigint AS space) AS s CROSS JOIN "
                f"unnest(#{match[1].count('?')}#::bytea[]) AS h (hash) CROSS JOIN LATERAL (SELECT hash, id "
                "FROM vectors WHERE vectors.space = s.space AND vectors.hash = h.hash LIMIT 1) AS v"
            ),
        ),
        (
            r"^SELECT id, data, checksum FROM vectors WHERE id IN \((\?(?:,\?)*)\) ORDER BY id$",
            lambda match: (
                f"SELECT v.id, v.data, v.checksum FROM unnest(#{match[1].count('?')}#::bigint[]) AS n (id) CROSS JOIN "
                "LATERAL (SELECT id, data, checksum FROM vectors WHERE vectors.id = n.id LIMIT 1) AS v ORDER BY v.id"
            ),
        ),
        (r"^SELECT \* FROM vectors WHERE \(id\) >=", "SELECT DISTINCT ON (id) * FROM vectors WHERE (id) >="),
        (
            r"^SELECT id, hash, data, checksum FROM vectors\b",
            "SELECT DISTINCT ON (hash) id, hash, data, checksum FROM vectors",
        ),
        (r"^SELECT count\(\*\) FROM vectors\b", "SELECT count(DISTINCT id) FROM vectors"),
        (r"\b(FROM windows WHERE) vector = vectors\.id", r"\1 windows.vector = vectors.id"),
        (r"\b(\w+)\.(vector = (\w+)\.id)\b", r"\1.entry_namespace = \3.entry_namespace AND \1.\2"),
        (r"\b(\w+)\.(id = (\w+)\.vector)\b", r"\1.entry_namespace = \3.entry_namespace AND \1.\2"),
        (r"\b(?!changes\.)(\w+)\.(entry = (\w+)\.num)\b", r"\1.entry_namespace = \3.namespace AND \1.\2"),
        (r"\b(\w+)\.(num = (?!changes\.)(\w+)\.entry)\b", r"\1.namespace = \3.entry_namespace AND \1.\2"),
    )
)
# Each rule is a pattern in a statement for SQLite, and its replacement. `@` marks a parameter that is a JSON list.
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
    """A statement for PostgreSQL. `keys` contains one key for each parameter of this statement. With the key, the value
    is read from the parameters of the original statement: an index or a name selects one value, and a slice selects
    several values. `lists` contains the keys of the values that are JSON lists."""

    text: str
    keys: tuple[int | str | slice, ...]
    lists: frozenset[int | str]

    def bind(self, values: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """Return one value for each parameter, in order. If a slice selects several values for a parameter, the value
        is a list."""
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
    """Return the statement for PostgreSQL that has the same effect as the statement `sql` for SQLite."""
    end = ""
    for known, namespaced in _NAMESPACED:
        sql = known.sub(namespaced, sql)
    if replacing := _REPLACE.match(sql):
        table = replacing[1]
        changes = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS[table])
        sql, end = sql.replace("OR REPLACE ", "", 1), f" ON CONFLICT ({_KEYS[table]}) DO UPDATE SET {changes}"
    elif _IGNORE.match(sql):
        sql, end = sql.replace("OR IGNORE ", "", 1), " ON CONFLICT DO NOTHING"
    for pattern, replacement in _RULES:
        sql = pattern.sub(replacement, sql)
    # one statement for any number of values
    sql = _MARKS.sub(lambda match: f"{'<> ALL' if match[1] else '= ANY'}(#{match[2].count('?')}#)", sql)
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
        mark, name = found.lstrip("@")[0], found.lstrip("@")[1:]
        key = name if mark == ":" else int(name) - 1 if name else bound
        bound += 1
        keys.append(key)
        if found.startswith("@"):
            lists.add(key)
        return "%s"

    text = _PARAMETER.sub(parameter, sql) + end
    return Statement(text, tuple(keys), frozenset(lists))


def escape(text: str) -> str:
    """Return the text in the form in which PostgreSQL stores it, without NUL."""
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, ESCAPE + "1").replace("\0", ESCAPE + "0")


def unescape(text: str) -> str:
    """Return the original of a text that `escape` returned."""
    if ESCAPE not in text:
        return text
    return text.replace(ESCAPE + "0", "\0").replace(ESCAPE + "1", ESCAPE)
