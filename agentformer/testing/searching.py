"""Tests of a backend: search computes exact cosines, finds all entries with a matching word, and always returns the
same order. Every call returns only entries of its scope (a filter for entries)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.records.offers import vectors_of
from agentformer.testing.case import BackendCase, FlakyEmbedder, Reference, by_words, contents, make_entry
from agentformer.types import TIERS, UNSEARCHED_KINDS, Decay, MemoryBackend, MemoryEntry, Query, Scope, Source, Use

_ANIMALS = ("numbat", "kakapo", "axolotl", "fossa", "gharial", "dugong", "jerboa", "loris", "margay", "urial")
_THINGS = ("lantern", "teapot", "anvil", "bobbin", "chisel", "dustpan", "easel", "funnel", "gasket", "hammock")


def _corpus(size: int = 300) -> list[MemoryEntry]:
    choose = random.Random(7)  # noqa: S311
    return [
        make_entry(f"{choose.choice(_ANIMALS)} {choose.choice(_ANIMALS)} saw the {choose.choice(_THINGS)} on day {n}.")
        for n in range(size)
    ]


def _long(fact: str, at: int, sentences: int = 120) -> str:
    """Return a text that is longer than the embedder can read at once. It consists of `sentences` similar sentences,
    and of `fact`, which precedes the sentence with index `at`."""
    filler = [f"Nothing of note was written about item {n} in that long year." for n in range(sentences)]
    return " ".join([*filler[:at], fact, *filler[at:]])


class Searching(BackendCase):
    """Tests of `search` in the modes dense, lexical and hybrid."""

    def test_dense_search_is_exact(self, tmp_path: Path) -> None:
        """Dense search returns the entries with the highest cosines, with the cosines of `Reference` as scores."""
        backend, entries = self.stored(tmp_path, *_corpus(), dense=True)
        reference = Reference(entries)
        for text in ("numbat teapot", "the fossa saw the anvil on day 7.", "jerboa", "unrelated words entirely"):
            for limit in (1, 5, 20):
                query = Query(text, limit=limit, mode="dense")
                reference.check_dense(query, backend.search(query))

    def test_dense_search_is_exact_after_changes(self, tmp_path: Path) -> None:
        """Dense search still returns exact results after entries are updated, removed and added."""
        backend, entries = self.stored(tmp_path, *_corpus(), dense=True)
        reference = Reference(entries)
        choose = random.Random(3)  # noqa: S311
        query = Query("margay gasket on day 12", limit=10, mode="dense")
        for round_ in range(6):
            reference.check_dense(query, backend.search(query))
            removed = choose.sample(sorted(reference.entries), 20)
            assert backend.remove(removed) == 20
            for entry_id in removed:
                del reference.entries[entry_id]
            changed = choose.choice(sorted(reference.entries))
            reference.entries[changed] = backend.update(changed, {"content": f"margay and gasket {round_}"})
            added = backend.store([make_entry(f"margay {round_} carries a gasket {n}") for n in range(5)])
            reference.entries.update({entry.id: entry for entry in added})
        reference.check_dense(query, backend.search(query))

    def test_a_long_text_is_found_by_its_best_window(self, tmp_path: Path) -> None:
        """A long text is embedded in windows. `span` of the hit is the window that matches the query best."""
        fact = "The vault code of the lighthouse keeper is heliotrope."
        texts = [_long(fact, 119), _long("Rain fell on the harbour.", 5), _long("The keeper left.", 60)]
        backend, entries = self.stored(tmp_path, *texts, dense=True)
        reference = Reference(entries)
        query = Query("vault code of the lighthouse keeper heliotrope", mode="dense")
        hits = backend.search(query)
        reference.check_dense(query, hits)
        assert hits[0].entry.content == texts[0]
        assert hits[0].span is not None
        assert fact in texts[0][hits[0].span.start : hits[0].span.end]
        assert hits[0].span.end - hits[0].span.start < len(texts[0]) / 2

    def test_words_find_the_entries_that_hold_them(self, tmp_path: Path) -> None:
        """Lexical search finds all entries that contain the word of the query, and no other entries."""
        backend, corpus = self.stored(tmp_path, *_corpus())
        for word in (*_ANIMALS, *_THINGS):
            assert by_words(backend, word) == [entry.id for entry in corpus if word in entry.content], word
        assert by_words(backend, "rhinoceros") == []

    def test_words_rank_the_better_match_higher(self, tmp_path: Path) -> None:
        """An entry with more words of the query scores higher. A rare word counts more than a frequent one."""
        both = make_entry("In the morning the dugong carried a bobbin to the beach.")
        twice = make_entry("The dugong met another dugong on the beach today.")
        once = make_entry("In the morning the dugong swam to the beach and back again.")
        other = make_entry("In the morning the fossa carried a chisel to the beach.")
        backend, _ = self.stored(tmp_path, other, once, twice, both)
        hits = backend.search(Query("dugong bobbin", mode="lexical"))
        assert contents(hits) == [both.content, twice.content, once.content]
        scores = [hit.lexical_score or 0.0 for hit in hits]
        assert scores == sorted(scores, reverse=True) and scores[0] > scores[1] > scores[2] > 0
        assert [hit.lexical_rank for hit in hits] == [1, 2, 3]

    def test_while_the_embedder_is_away_a_search_says_what_it_did(self, tmp_path: Path) -> None:
        """A hybrid search finds the words. A dense search finds nothing, and does not claim to have searched words."""
        embedder = FlakyEmbedder()
        backend, (entry,) = self.stored(tmp_path, "the numbat hid a teapot", embedder=embedder)
        embedder.down = True
        assert [hit.entry.id for hit in backend.search(Query("numbat"))] == [entry.id]
        dense = backend.search(Query("numbat", mode="dense"))
        assert not dense and dense.warnings and "lexical or hybrid" in dense.warnings[0]

    def test_each_mode_reports_only_its_own_scores(self, tmp_path: Path) -> None:
        """A hit of dense search has no lexical score. A hit of lexical search has no dense score."""
        backend, _ = self.stored(tmp_path, *_corpus(20))
        dense = backend.search(Query("numbat teapot", mode="dense"))
        assert bool(dense) == self.vectors and bool(dense.warnings) != self.vectors
        words = backend.search(Query("numbat teapot", mode="lexical"))
        assert all(hit.lexical_score is None and hit.lexical_rank is None for hit in dense)
        assert words and all(hit.dense_score is None and hit.dense_rank is None for hit in words)
        assert [hit.dense_rank for hit in dense] == list(range(1, len(dense) + 1))

    def test_hybrid_scores_are_in_range_sorted_and_reproducible(self, tmp_path: Path) -> None:
        """Hybrid scores are in 0..1, the highest first. A repeated search returns the same hits."""
        backend, _ = self.stored(tmp_path, *_corpus())
        for text in ("numbat teapot", "kakapo", "the loris saw the easel on day 3", "nothing known"):
            hits = backend.search(Query(text, limit=50))
            assert len(hits) == 50 or (not self.vectors and (hits or text == "nothing known"))
            assert all(0.0 <= hit.score <= 1.0 for hit in hits)
            assert [(-hit.score, hit.entry.id) for hit in hits] == sorted((-hit.score, hit.entry.id) for hit in hits)
            assert list(backend.search(Query(text, limit=50))) == list(hits)

    def test_hybrid_ranks_the_first_of_both_sides_first(self, tmp_path: Path) -> None:
        """If an entry is the best hit of dense search and of lexical search, its hybrid score is 1."""
        best = make_entry("the urial walks under a hammock")
        backend, _ = self.stored(tmp_path, *_corpus(50), best, *_corpus(50), dense=True)
        hits = backend.search(Query("the urial walks under a hammock"))
        assert hits[0].entry.id == best.id
        assert (hits[0].dense_rank, hits[0].lexical_rank) == (1, 1)
        assert abs(hits[0].score - 1.0) < 1e-9

    def test_a_smaller_limit_returns_the_beginning_of_the_list(self, tmp_path: Path) -> None:
        """A search with a smaller `limit` returns the first hits of the same search with a larger `limit`."""
        backend, _ = self.stored(tmp_path, *_corpus())
        for mode in self.modes:
            for text in ("fossa hammock", "gharial day 9", "dugong", "bobbin margay jerboa"):
                whole = backend.search(Query(text, limit=40, mode=mode))
                for limit in range(8):
                    part = backend.search(Query(text, limit=limit, mode=mode))
                    assert [hit.entry.id for hit in part] == [hit.entry.id for hit in whole[:limit]], (mode, text)

    def test_min_score_only_cuts_the_list(self, tmp_path: Path) -> None:
        """`min_score` removes all hits with a score below this value. The other hits do not change."""
        backend, _ = self.stored(tmp_path, *_corpus())
        whole = backend.search(Query("fossa hammock day 4", limit=30))
        least = whole[10].score
        assert len(whole) == 30
        cut = backend.search(Query("fossa hammock day 4", limit=30, min_score=least))
        assert list(cut) == [hit for hit in whole if hit.score >= least]
        assert 11 <= len(cut) < 30
        assert list(backend.search(Query("fossa hammock day 4", min_score=1.01))) == []

    def test_an_empty_query_finds_nothing(self, tmp_path: Path) -> None:
        """A query that is empty or consists of white space returns no hits."""
        backend = self.start(tmp_path)
        assert list(backend.search(Query("anything"))) == []
        backend.store(_corpus(5))
        for text in ("", "  \n\t"):
            for mode in self.modes:
                assert list(backend.search(Query(text, mode=mode))) == []

    def test_a_query_may_contain_any_character(self, tmp_path: Path) -> None:
        """Operators of a query language and control characters in a query are plain text."""
        backend, (entry,) = self.stored(
            tmp_path, make_entry('a "quoted" (numbat) AND OR NOT +x -y field:value * ~2 ^3 \\ /re/')
        )
        operators = ('"', "AND", "(", "numbat)", "field:value", "*", "\\", "/re/", "' OR 1=1 --")
        for text in (*operators, "a" * 5000, "😀", "\u0000"):
            assert {hit.entry.id for hit in backend.search(Query(text))} <= {entry.id}
        assert [hit.entry.id for hit in backend.search(Query("numbat)"))] == [entry.id]

    def test_context_is_searched_and_embedded_but_is_not_content(self, tmp_path: Path) -> None:
        """An entry may have a context, such as the heading above its text. Search finds the entry by words of the
        context. The content of the hit does not include the context."""
        entry = make_entry("It opens at nine.", context="Handbook › Archipelago museum")
        backend, _ = self.stored(tmp_path, entry, "It closes at nine.", *_corpus(20))
        assert by_words(backend, "archipelago") == [entry.id]
        assert contents(backend.search(Query("archipelago")))[:1] == [entry.content]
        if self.vectors:
            (hit,) = backend.search(Query("archipelago museum opens", mode="dense", limit=1))
            assert (hit.entry.id, hit.entry.content, hit.span) == (entry.id, entry.content, (0, len(entry.content)))
            expected = HashingEmbedder().embed_documents([f"{entry.context}\n{entry.content}"])[0]
            cosine = float(expected @ HashingEmbedder().embed_query("archipelago museum opens"))
            assert abs((hit.dense_score or 0) - cosine) < 1e-5

    def test_another_namespace_is_never_searched(self, tmp_path: Path) -> None:
        """Search returns only entries of the namespace in the scope."""
        mine, theirs = make_entry("the jerboa secret", namespace="a"), make_entry("the jerboa secret", namespace="b")
        backend, _ = self.stored(tmp_path, mine, theirs)
        for mode in self.modes:
            hits = backend.search(Query("the jerboa secret", Scope("a"), mode=mode))
            assert [hit.entry.id for hit in hits] == [mine.id]


_DAY = datetime(2024, 3, 1, tzinfo=UTC)
_WORD = "quokka"  # a word of every entry, so that a search finds every entry of the scope
_JSON: tuple[Any, ...] = (
    *(True, False, 1, 0, 1.5, -1, "1", "true", "", "ä'\"%\\", None),
    *(2**64, 2**64 + 1, -(2**63) - 1, 1e300, "a\0b", "a\0c", [2**64 + 1]),
    *([], {}, [1], [True], ["1"], [1, 2], [2, 1], [[1], 2]),
    *({"a": 1}, {"a": True}, {"a": None}, {"a": {"b": [1, {"c": "ö"}]}}, {"b": 2, "a": 1}),
)


def _population(seed: int, size: int) -> list[MemoryEntry]:
    """Return `size` random entries. The entries differ in every field that a scope can filter by."""
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
                source=Source(document, "name", choose.choice([None, 1, 2, 3])) if document else None,
                occurred_at=choose.choice([None, _DAY + timedelta(hours=choose.randrange(48))]),
                metadata=choose.choice([{}, {"k": choose.choice(_JSON)}, {"k": 1, "l": choose.choice([1, 2])}]),
                salience=choose.choice([0.0, 0.25, 0.5, 1.0]),
                valid_from=choose.choice([None, None, None, _DAY, _DAY + timedelta(hours=30)]),
                valid_to=choose.choice([None, None, None, _DAY + timedelta(hours=30), _DAY + timedelta(days=9999)]),
                expires_at=choose.choice([None, None, None, _DAY + timedelta(hours=40), _DAY + timedelta(days=9999)]),
                archived_at=choose.choice([None, None, None, _DAY]),
            )
        )
    last: dict[tuple[str, str | None], str] = {}  # the newest entry of each owner, which is not superseded
    for n in reversed(range(size)):
        owner = (entries[n].namespace, entries[n].user_id)
        if owner in last and choose.random() < 0.25:
            entries[n] = replace(entries[n], superseded_by=last[owner])
        last.setdefault(owner, entries[n].id)
    return entries


def _scopes() -> Iterator[Scope]:
    yield from (Scope(), Scope("other"), Scope("nobody"), Scope(include_archived=True))
    yield from (Scope(tiers=(tier,)) for tier in TIERS)
    yield Scope(tiers=("core", "working"))
    yield from (Scope(kinds=kinds) for kinds in (("fact",), ("message", "document"), ("no such kind",)))
    yield from (Scope(session_id="s1"), Scope(session_id=""))
    yield Scope(parent_id="p2", include_archived=True)
    yield Scope(document_id="d1", include_archived=True)
    yield Scope(document_id="d1", pages=(1, 3), include_archived=True)
    yield Scope(except_kinds=("chunk", "message"), include_archived=True)
    yield Scope(user_id="", or_nobody=True)
    yield Scope(occurred_from=_DAY + timedelta(hours=20))
    yield Scope(occurred_to=_DAY + timedelta(hours=20))
    yield Scope(occurred_from=_DAY + timedelta(hours=10), occurred_to=_DAY + timedelta(hours=30))
    yield from (Scope(since=_DAY), Scope(until=_DAY), Scope(since=_DAY + timedelta(hours=20)))
    yield Scope(since=_DAY - timedelta(hours=99), until=_DAY + timedelta(hours=30), include_archived=True)
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
    for hours in (-30, 0, 20, 30, 40):
        at = _DAY + timedelta(hours=hours)
        yield from (Scope(as_of=at), Scope(as_of=at, include_archived=True), Scope(user_id="u1", as_of=at))
    yield from (Scope(as_of=_DAY + timedelta(days=9999)), Scope(include_summarized=True))
    yield Scope(metadata={"k": 1, "l": 2}, include_archived=True)
    yield Scope(metadata={"absent": None}, include_archived=True)
    yield Scope("other", ("semantic", "core"), ("fact", "message"), min_salience=0.25, include_archived=True)


class Scopes(BackendCase):
    """Tests of scopes in `list`, `count` and `search`. A scope is a filter for entries."""

    def test_every_scope_is_exact_in_list_count_and_search(self, tmp_path: Path) -> None:
        """For many scopes over random entries, `list`, `count` and `search` return the entries that `Reference`
        returns."""
        backend = self.start(tmp_path)
        reference = Reference(backend.store(_population(seed=1, size=260)))
        sizes = [self._check_scope(backend, reference, scope) for scope in _scopes()]
        assert max(sizes) > 100 and sum(size > 0 for size in sizes) > 15  # otherwise the scopes test little

    def test_reading_does_not_change_decay(self, tmp_path: Path) -> None:
        """`list`, `count` and `search` compute the decayed salience of an entry. They do not change its stored
        salience."""
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
        """A metadata filter compares JSON types and values: true, 1 and "1" are three different values."""
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
        """A metadata key is plain text: characters such as `.` and `$` have no special meaning."""
        backend = self.start(tmp_path)
        keys = ("", "a.b", "$", "$.a", "a[0]", '"', "'", "ä", "%", "a b", "A")
        backend.store([make_entry(key, metadata={key: 1, "a": {"b": 1}}) for key in keys])
        for key in keys:
            assert [e.content for e in backend.list(Scope(metadata={key: 1}))] == [key]

    def test_a_small_scope_is_searched_exactly(self, tmp_path: Path) -> None:
        """Search finds the only entry of a scope, although many other entries match the text better."""
        crowd = [
            make_entry(f"{_WORD} {_WORD} eats a leaf", session_id=f"s{n % 7}", metadata={"year": 1990 + n % 9})
            for n in range(2000)
        ]
        rare = {"rare": True, "year": 2026}
        inside = make_entry(f"something else altogether, and one {_WORD}", session_id="mine", metadata=rare)
        backend, _ = self.stored(tmp_path, *crowd[:1000], inside, *crowd[1000:])
        late = Scope(where={"type": "gte", "key": "year", "value": 2000})
        for scope in (Scope(session_id="mine"), Scope(metadata={"rare": True}), late):
            for mode in self.modes:
                hits = backend.search(Query(f"{_WORD} eats a leaf", scope, limit=3, mode=mode))
                assert [hit.entry.id for hit in hits] == [inside.id], (mode, scope)

    def test_documents_and_pages_are_listed_but_not_searched(self, tmp_path: Path) -> None:
        """`list` and `count` include entries of the kinds document and page. Search never returns these entries."""
        backend = self.start(tmp_path)
        for kind in sorted(UNSEARCHED_KINDS):
            backend.store([make_entry(f"{_WORD} in a {kind}", kind=kind)])
            scope = Scope(kinds=(kind,))
            assert backend.count(scope) == 1 and vectors_of(backend).pending(scope) == 0
            assert by_words(backend, _WORD, scope) == [] == self.by_vectors(backend, _WORD, scope)

    def _check_scope(self, backend: MemoryBackend, reference: Reference, scope: Scope) -> int:
        """Check lists, counts and searches of a scope against the reference. Return the number of its entries."""
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
