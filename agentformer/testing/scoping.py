"""Check that a call sees exactly the entries of its scope."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentformer.testing.case import BackendCase, Reference, by_words, make_entry
from agentformer.types import TIERS, UNSEARCHED_KINDS, Decay, MemoryBackend, MemoryEntry, Query, Scope, Source, Use

_DAY = datetime(2024, 3, 1, tzinfo=UTC)
_WORD = "quokka"  # a word of every entry, so that a search finds every entry of the scope
_JSON: tuple[Any, ...] = (
    *(True, False, 1, 0, 1.5, -1, "1", "true", "", "ä'\"%\\", None),
    *([], {}, [1], [True], ["1"], [1, 2], [2, 1], [[1], 2]),
    *({"a": 1}, {"a": True}, {"a": None}, {"a": {"b": [1, {"c": "ö"}]}}, {"b": 2, "a": 1}),
)


def _population(seed: int, size: int) -> list[MemoryEntry]:
    """Return entries that differ in every field that a scope can filter by."""
    choose = random.Random(seed)  # noqa: S311
    entries = []
    for n in range(size):
        document = choose.choice(["d1", "d2", None])
        entries.append(
            make_entry(
                f"{_WORD} number{n} " + " ".join(f"w{choose.randrange(40)}" for _ in range(6)),
                namespace=choose.choice(["default", "default", "other"]),
                tier=choose.choice(TIERS),
                kind=choose.choice(["fact", "message", "chunk", "document", "page"]),
                session_id=choose.choice(["s1", "s2", None]),
                agent_id=choose.choice(["a1", "a2", None]),
                user_id=choose.choice(["u1", "käyttäjä", None]),
                project=choose.choice(["p1", "p2", None]),
                category=choose.choice(["decisions", "context", "", "own"]),
                source_type=choose.choice(["ticket", "note", None]),
                source_id=choose.choice(["1", "2", None]),
                created_at=_DAY - timedelta(hours=choose.randrange(480)),
                last_accessed=choose.choice([None, _DAY - timedelta(hours=choose.randrange(240))]),
                parent_id=choose.choice(["p1", "p2", None]),
                source=Source(document, "name") if document else None,
                occurred_at=choose.choice([None, _DAY + timedelta(hours=choose.randrange(48))]),
                metadata=choose.choice([{}, {"k": choose.choice(_JSON)}, {"k": 1, "l": choose.choice([1, 2])}]),
                salience=choose.choice([0.0, 0.25, 0.5, 1.0]),
                archived_at=choose.choice([None, None, None, _DAY]),
                superseded_by=choose.choice([None, None, None, "newer"]),
            )
        )
    return entries


def _scopes() -> Iterator[Scope]:
    yield from (Scope(), Scope("other"), Scope("nobody"), Scope(include_archived=True))
    yield from (Scope(tiers=(tier,)) for tier in TIERS)
    yield Scope(tiers=("core", "working"))
    yield from (Scope(kinds=kinds) for kinds in (("fact",), ("message", "document"), ("no such kind",)))
    yield from (Scope(session_id="s1"), Scope(session_id=""))
    yield Scope(parent_id="p2", include_archived=True)
    yield Scope(document_id="d1", include_archived=True)
    yield Scope(occurred_from=_DAY + timedelta(hours=20))
    yield Scope(occurred_to=_DAY + timedelta(hours=20))
    yield Scope(occurred_from=_DAY + timedelta(hours=10), occurred_to=_DAY + timedelta(hours=30))
    yield from (Scope(min_salience=least, include_archived=True) for least in (0.25, 0.5, 0.75, 1.0))
    yield from (Scope(agent_id="a1"), Scope(user_id="käyttäjä"), Scope(project="p2"), Scope(user_id=""))
    yield Scope(agent_id="a1", user_id="u1", project="p1", include_archived=True)
    yield from (Scope(user_id="u1", or_nobody=True), Scope(user_id="u1", project="p1", or_nobody=True))
    yield Scope(categories=("decisions",))
    yield Scope(categories=("", "own"), include_archived=True)
    yield Scope(source_type="ticket", source_id="1", include_archived=True)
    yield Scope(source_type="note")
    rates = {"decisions": 1.0, "context": 0.9, "own": 0.0, "unused": 0.5}
    for least in (0.0, 0.05, 0.2, 0.5):
        yield Scope(min_salience=least, decay=Decay(rates, _DAY), include_archived=True)
        yield Scope(min_salience=least, decay=Decay(rates, _DAY + timedelta(days=30)), categories=("context",))
        yield Scope(min_salience=least, decay=Decay(rates, _DAY - timedelta(days=30)), include_archived=True)
    yield Scope(min_salience=0.2, decay=Decay(rates))  # relative to the current time
    yield Scope(metadata={"k": 1, "l": 2}, include_archived=True)
    yield Scope(metadata={"absent": None}, include_archived=True)
    yield Scope("other", ("semantic", "core"), ("fact", "message"), min_salience=0.25, include_archived=True)


class Scopes(BackendCase):
    """Tests of scopes in `list`, `count` and `search`."""

    def test_every_scope_is_exact_in_list_count_and_search(self, tmp_path: Path) -> None:
        """For random scopes over random entries, results are those of the reference."""
        backend = self.start(tmp_path)
        reference = Reference(backend.store(_population(seed=1, size=400)))
        sizes = [self._check_scope(backend, reference, scope) for scope in _scopes()]
        assert max(sizes) > 100 and sum(size > 0 for size in sizes) > 15  # otherwise the scopes test little

    def test_reading_does_not_change_decay(self, tmp_path: Path) -> None:
        """The decay of an entry is computed at each reading. The stored value does not change."""
        entry = make_entry(f"a {_WORD}", category="context", salience=0.8, created_at=_DAY)
        backend, (stored,) = self.stored(tmp_path, entry)
        later = Decay({"context": 0.9}, _DAY + timedelta(days=10))  # 0.8 * 0.9 ** 10 = 0.2789
        for _ in range(5):
            for least, ids in ((0.279, []), (0.2789, [entry.id])):
                scope = Scope(min_salience=least, decay=later)
                assert by_words(backend, _WORD, scope) == ids == [e.id for e in backend.list(scope)]
        assert list(backend.get([entry.id])) == [stored]
        backend.touch([Use(entry.id, _DAY + timedelta(days=9), reads=1)])
        assert backend.count(Scope(min_salience=0.72, decay=later)) == 1
        assert backend.count(Scope(min_salience=0.73, decay=later)) == 0

    def test_metadata_is_compared_as_json(self, tmp_path: Path) -> None:
        """Metadata filters compare the type and the value of JSON values."""
        new = (make_entry(f"{_WORD} {n}", metadata={"k": value}) for n, value in enumerate(_JSON))
        backend, entries = self.stored(tmp_path, *new)
        backend.store([make_entry(f"{_WORD} without"), make_entry(f"{_WORD} nested", metadata={"n": {"k": 1}})])
        for value, entry in zip(_JSON, entries, strict=True):
            assert [e.metadata for e in backend.list(Scope(metadata={"k": value}))] == [entry.metadata]
            assert by_words(backend, _WORD, Scope(metadata={"k": value})) == [entry.id]

    def test_numbers_are_compared_by_value(self, tmp_path: Path) -> None:
        """In a metadata filter, 2 and 2.0 are equal."""
        backend, _ = self.stored(tmp_path, make_entry("a", metadata={"k": 2}), make_entry("b", metadata={"k": 2.0}))
        for value in (2, 2.0):
            assert [e.content for e in backend.list(Scope(metadata={"k": value}))] == ["a", "b"]

    def test_metadata_keys_are_plain_text(self, tmp_path: Path) -> None:
        """In a metadata key, no character has a special meaning."""
        backend = self.start(tmp_path)
        keys = ("", "a.b", "$", "$.a", "a[0]", '"', "'", "ä", "%", "a b", "A")
        backend.store([make_entry(key, metadata={key: 1, "a": {"b": 1}}) for key in keys])
        for key in keys:
            assert [e.content for e in backend.list(Scope(metadata={key: 1}))] == [key]

    def test_a_small_scope_is_searched_exactly(self, tmp_path: Path) -> None:
        """Search finds the only entry of a scope although thousands of entries are outside the scope."""
        crowd = [make_entry(f"{_WORD} {_WORD} eats a leaf", session_id=f"s{n % 7}") for n in range(2000)]
        inside = make_entry(f"something else altogether, and one {_WORD}", session_id="mine", metadata={"rare": True})
        backend, _ = self.stored(tmp_path, *crowd[:1000], inside, *crowd[1000:])
        for scope in (Scope(session_id="mine"), Scope(metadata={"rare": True})):
            for mode in self.modes:
                hits = backend.search(Query(f"{_WORD} eats a leaf", scope, limit=3, mode=mode))
                assert [hit.entry.id for hit in hits] == [inside.id], (mode, scope)

    def test_documents_and_pages_are_listed_but_not_searched(self, tmp_path: Path) -> None:
        """Documents and pages are listed and counted, but no search returns them."""
        backend = self.start(tmp_path)
        for kind in sorted(UNSEARCHED_KINDS):
            backend.store([make_entry(f"{_WORD} in a {kind}", kind=kind)])
            scope = Scope(kinds=(kind,))
            assert backend.count(scope) == 1 and backend.pending(scope) == 0
            assert by_words(backend, _WORD, scope) == [] == self.by_vectors(backend, _WORD, scope)

    def _check_scope(self, backend: MemoryBackend, reference: Reference, scope: Scope) -> int:
        expected = reference.list(scope)
        assert list(backend.list(scope, limit=1000)) == expected, scope
        assert backend.count(scope) == len(expected), scope
        searched = [entry.id for entry in expected if entry.kind not in UNSEARCHED_KINDS]
        assert by_words(backend, _WORD, scope) == searched, scope
        assert self.by_vectors(backend, _WORD, scope) == searched, scope
        if self.vectors:
            query = Query(f"{_WORD} w3 w7 w9", scope, limit=7, mode="dense")
            reference.check_dense(query, backend.search(query))
        return len(expected)
