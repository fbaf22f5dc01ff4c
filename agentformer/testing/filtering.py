"""Tests of a backend: every call applies the filter `where` exactly. `where` is a tree of conditions on metadata and
fields."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentformer.testing.case import BackendCase, Reference, make_entry
from agentformer.types import MemoryEntry, Query, Scope, Source

_WORD = "wombat"
_DAY = datetime(2026, 11, 20, tzinfo=UTC)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 1.0, 2, 2.5, -1, 2**40),
    *("", "1", "a", "b", "ä", "true", [], [1], {"a": 1}),
)
_COMPARED = tuple(value for value in _VALUES if isinstance(value, str) or type(value) in (int, float))
_KEYS = ("k", "l", "m", "$k", "a.b")
_FIELDS: dict[str, tuple[Any, ...]] = {
    "$kind": ("fact", "note", "", 1, None),
    "$title": ("", "Ärende", "b", 2),
    "$session_id": ("s1", "s2", True),
    "$page": (1, 2, 1.5, "1", None),
    "$document_id": ("d1", "d2"),
    "$salience": (0.25, 1, 2**70, "1"),
    "$occurred_at": (_DAY.isoformat(), (_DAY + timedelta(hours=5)).isoformat()),
    "$source_id": ("1", "x" * 300),
}


def random_filter(choose: random.Random, depth: int = 3) -> dict[str, Any]:
    """Return a random filter in its JSON form, with at most `depth` levels of groups."""
    if depth and choose.random() < 0.5:
        kind = choose.choice(("and", "or", "not"))
        parts = [random_filter(choose, depth - 1) for _ in range(1 if kind == "not" else choose.randint(1, 3))]
        return {"type": kind, "filters": parts}
    key = choose.choice([*_FIELDS, *(f"$metadata.{key}" for key in _KEYS)])
    kind = choose.choice(("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "exists"))
    values = _FIELDS.get(key, _VALUES)
    if kind in ("in", "nin"):
        return {"type": kind, "key": key, "value": choose.sample(values, choose.randint(0, len(values)))}
    if kind == "exists":
        return {"type": kind, "key": key, "value": choose.random() < 0.5}
    if kind not in ("eq", "ne"):
        values = tuple(v for v in values if type(v) in (int, float, str) and v != 2**70) or _COMPARED
    return {"type": kind, "key": key, "value": choose.choice(values)}


def random_entries(choose: random.Random, size: int) -> list[MemoryEntry]:
    """Return entries whose metadata and fields have values that random filters compare."""

    def some(key: str) -> Any:
        return choose.choice([value for value in (*_FIELDS[key], None) if value is None or isinstance(value, str)])

    return [
        make_entry(
            f"{_WORD} number {n}",
            kind=choose.choice(["fact", "note"]),
            title=some("$title") or "",
            session_id=some("$session_id"),
            source=choose.choice([None, Source(choose.choice(["d1", "d2"]), "name", choose.choice([None, 1, 2]))]),
            salience=choose.choice([0.0, 0.25, 1.0]),
            occurred_at=choose.choice([None, _DAY, _DAY + timedelta(hours=9)]),
            source_type="note",
            source_id=choose.choice(["1", "2", "x" * 300]),
            metadata={key: choose.choice(_VALUES) for key in choose.sample(_KEYS, choose.randint(0, 3))},
        )
        for n in range(size)
    ]


class Filtering(BackendCase):
    """Tests of `Scope.where` in `list`, `count`, `search` and `remove`."""

    def test_random_filters_are_exact(self, tmp_path: Path) -> None:
        """`list`, `count` and `search` return exactly the entries that match a random filter."""
        choose = random.Random(5)  # noqa: S311
        backend = self.start(tmp_path)
        reference = Reference(backend.store(random_entries(choose, 120)))
        sizes = set()
        for _ in range(80):
            scope = Scope(where=random_filter(choose))
            expected = [entry.id for entry in reference.list(scope)]
            assert [entry.id for entry in backend.list(scope, limit=1000)] == expected, scope.where
            assert backend.count(scope) == len(expected), scope.where
            hits = backend.search(Query(_WORD, scope, limit=1000, mode="lexical"))
            assert sorted(hit.entry.id for hit in hits) == expected, scope.where
            sizes.add(len(expected))
        assert len(sizes) > 20 and 0 in sizes and max(sizes) > 80  # otherwise the filters test little

    def test_remove_deletes_what_matches_the_filter(self, tmp_path: Path) -> None:
        """`remove` with a filter deletes the matching entries, and no others."""
        entries = [make_entry(f"{_WORD} {n}", metadata={"n": n}) for n in range(20)]
        backend, _ = self.stored(tmp_path, *entries)
        assert backend.remove(Scope(where={"type": "lt", "key": "n", "value": 15})) == 15
        assert [entry.metadata["n"] for entry in backend.list(Scope())] == [15, 16, 17, 18, 19]

    def test_texts_are_ordered_by_their_code_points(self, tmp_path: Path) -> None:
        """`gt` and `lt` compare texts by code points, whatever the locale of the database is."""
        texts = ("", "B", "a", "b", "z", "ä", "\uffff", "\U0001f600")
        entries = [make_entry(f"{_WORD} {n}", title=text, metadata={"t": text}) for n, text in enumerate(texts)]
        backend, _ = self.stored(tmp_path, *entries)
        for limit in texts:
            for key in ("t", "$title"):
                found = backend.list(Scope(where={"type": "gt", "key": key, "value": limit}))
                assert [entry.title for entry in found] == [text for text in texts if text > limit], (key, limit)

    def test_an_empty_list_of_values_matches_nothing(self, tmp_path: Path) -> None:
        """`in` with an empty list matches no entry, and `nin` matches every entry."""
        backend, entries = self.stored(tmp_path, make_entry(_WORD, metadata={"k": 1}), make_entry(_WORD))
        for key in ("k", "$title"):
            assert backend.count(Scope(where={"type": "in", "key": key, "value": []})) == 0
            assert backend.count(Scope(where={"type": "nin", "key": key, "value": []})) == len(entries)
