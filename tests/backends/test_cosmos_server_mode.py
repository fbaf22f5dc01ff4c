"""The mode `server` of the backend `cosmos_db`. The emulator has no vectors and no full text, so the rankings are
tested against the documented grammar, and the conditions are run on the emulator. Nothing here was run on an account.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput, TooLarge
from agentformer.memory.backends.cosmos_db.backend import (
    CosmosMemoryBackend,
    ServerQuery,
    search_query,
    select_scope,
    words_of,
)
from agentformer.memory.backends.cosmos_db.container import CosmosAddress, local_properties, server_properties
from agentformer.memory.backends.cosmos_db.items import partition_of
from agentformer.testing import FlakyEmbedder, make_entry
from agentformer.types import Decay, MemoryEntry, Query, Scope, Source
from tests.backends.cosmos_emulator import KEY, Emulator

MOMENT = datetime(2026, 11, 20, tzinfo=UTC)
HOSTILE = ("x' OR 1=1 --", 'x" OR true', "@namespace", "c.pk", "a/b", "", "日本", "ns:a")
# The part of the grammar of Cosmos DB for NoSQL that these queries may use; no literal contains a value of a caller.
_PATH = r"c(?:\.\w+)+"
_VALUE = rf"(?:{_PATH}|@\w+|'entry')"
_SIMPLE = (
    rf"(?:{_VALUE} (?:=|>=|<|<=|>) {_VALUE}|(?:NOT )?ARRAY_CONTAINS\({_VALUE}, {_VALUE}\)|IS_NULL\({_PATH}\)"
    rf"|(?:NOT )?IS_NUMBER\({_PATH}\)|IS_DEFINED\({_PATH}\))"
)
_GROUP = rf"(?:{_SIMPLE}|\({_SIMPLE} (?:OR|AND) {_SIMPLE}\))"
_CONDITION = rf"{_GROUP}(?: AND {_GROUP})*"
_WORDS = rf"FullTextScore\({_PATH}(?:, @\w+)+\)"
_VECTOR = rf"VectorDistance\({_PATH}, @\w+\)"
_FIELD = rf"(?:{_PATH}|{_VECTOR}) AS \w+"
_ORDER = rf"(?:RANK RRF\({_WORDS}, {_VECTOR}\)|RANK {_WORDS}|{_VECTOR})"
GRAMMAR = re.compile(rf"SELECT TOP @limit {_FIELD}(?:, {_FIELD})* FROM c WHERE {_CONDITION} ORDER BY {_ORDER}")


def random_scope(chooser: random.Random) -> Scope:
    def some(*values: Any) -> Any:
        return chooser.choice(values) if chooser.random() < 0.15 else None

    return Scope(
        chooser.choice(("default", "default", "other", *HOSTILE)),
        tiers=chooser.choice(((), (), ("semantic",), ("episodic", "core"))),
        kinds=chooser.choice(((), (), ("fact", "chunk"))),
        except_kinds=chooser.choice(((), ("chunk",))),
        categories=chooser.choice(((), (), ("decisions",))),
        pages=chooser.choice(((), (), (), (), (1, 2))),
        session_id=some("s", *HOSTILE),
        user_id=some("aino"),
        project=some("p"),
        document_id=some("d"),
        or_nobody=chooser.random() < 0.5,
        occurred_from=some(MOMENT),
        occurred_to=some(MOMENT + timedelta(days=1)),
        since=some(MOMENT),
        until=some(MOMENT + timedelta(days=400)),
        metadata=chooser.choice(({}, {}, {}, {}, {}, {"n": 1}, {"n": True}, {"'; DROP": [1, {"a": None}]}, {"n": 1.0})),
        min_salience=chooser.choice((0.0, 0.5)),
        include_archived=chooser.random() < 0.5,
    )


def random_entry(chooser: random.Random, number: int) -> MemoryEntry:
    return make_entry(
        f"quokka {number}",
        namespace=chooser.choice(("default", "default", "other", *HOSTILE[:2])),
        tier=chooser.choice(("semantic", "episodic")),
        kind=chooser.choice(("fact", "chunk", "message")),
        category=chooser.choice(("", "decisions")),
        session_id=chooser.choice((None, "s", HOSTILE[0])),
        user_id=chooser.choice((None, "aino", "eino")),
        project=chooser.choice((None, "p")),
        source=chooser.choice((None, Source("d", "name", page=2), Source("e", "name", page=9))),
        occurred_at=chooser.choice((None, MOMENT, MOMENT + timedelta(days=2))),
        created_at=MOMENT + timedelta(days=chooser.randrange(-2, 2)),
        metadata=chooser.choice(({}, {"n": 1}, {"n": 1.0}, {"n": True}, {"'; DROP": [1.0, {"a": None}]})),
        salience=chooser.choice((1.0, 0.2)),
        archived_at=chooser.choice((None, None, MOMENT)),
    )


@pytest.mark.process
def test_every_query_follows_the_documented_grammar_and_contains_no_value(backend: CosmosMemoryBackend) -> None:
    chooser = random.Random(3)
    backend.store([random_entry(chooser, number) for number in range(40)])
    asked = 0
    with backend._database.reading() as connection:
        for _ in range(300):
            scope = random_scope(chooser)
            if (selected := select_scope(connection, scope)) is None:
                continue
            terms = chooser.choice(([], ["quokka", "x') OR 1=1"]))
            vector = [0.5, -0.5] if not terms else chooser.choice((None, [0.5, -0.5]))
            query = search_query(selected, 7, terms, vector, 10)
            assert GRAMMAR.fullmatch(query.text), query.text
            assert set(re.findall(r"@(\w+)", query.text)) == set(query.parameters)
            assert "c.pk = @partition AND c.namespace = @namespace AND " in query.text
            assert query.parameters["partition"] == f"ns:{scope.namespace}"
            assert query.parameters["namespace"] == scope.namespace
            assert query.parameters["limit"] == 10 and query.parameters["space"] == 7
            asked += 1
    assert asked > 20


def test_the_three_rankings() -> None:
    def order(terms: list[str], vector: list[float] | None) -> str:
        return search_query(ServerQuery("c.pk = @pk", {}), 1, terms, vector, 5).text.partition(" ORDER BY ")[2]

    assert order(["a", "b"], None) == "RANK FullTextScore(c.text, @term0, @term1)"
    assert order([], [1.0]) == "VectorDistance(c.embedding, @vector)"
    assert order(["a"], [1.0]) == "RANK RRF(FullTextScore(c.text, @term0), VectorDistance(c.embedding, @vector))"
    assert words_of("Two words, two WORDS: 'quoted'") == ["two", "words", "quoted"]
    with pytest.raises(TooLarge):
        partition_of("n" * 3000)


def test_policies_name_the_paths_of_the_items() -> None:
    properties = server_properties(384)
    (vector,) = properties["vector_embedding_policy"]["vectorEmbeddings"]
    assert vector == {"path": "/embedding", "dataType": "float32", "distanceFunction": "cosine", "dimensions": 384}
    policy = properties["indexing_policy"]
    assert policy["vectorIndexes"] == [{"path": "/embedding", "type": "diskANN"}]
    assert policy["fullTextIndexes"] == [{"path": "/text"}]
    assert properties["full_text_policy"]["fullTextPaths"] == [{"path": "/text", "language": "en-US"}]
    for given in (properties, local_properties()):
        included = [path["path"] for path in given["indexing_policy"]["includedPaths"]]
        assert {"/pk/?", "/seq/?", "/type/?", "/namespace/?"} <= set(included)
        assert given["indexing_policy"]["excludedPaths"] == [{"path": "/*"}]


class Service:
    """Ranks by cosine what the emulator returns for the condition of a query, in place of the service."""

    def __init__(self, backend: CosmosMemoryBackend) -> None:
        self.asked: list[ServerQuery] = []
        self._query = backend._container.query

    def query(self, text: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        if " ORDER BY " not in text:
            yield from self._query(text, **parameters)
            return
        self.asked.append(ServerQuery(text, parameters))
        condition = text.partition(" WHERE ")[2].partition(" ORDER BY ")[0]
        rows = list(self._query(f"SELECT * FROM c WHERE {condition}", **parameters))
        vector = np.array(parameters.get("vector", ()), np.float32)
        found = []
        for row in rows:
            cosine = (
                float(np.array(row["embedding"], np.float32) @ vector) if "embedding" in row and len(vector) else None
            )
            ends = row["row"].get("span_start"), row["row"].get("span_end")
            found.append({"num": row["scope"]["num"], "spanStart": ends[0], "spanEnd": ends[1], "cosine": cosine})
            found[-1]["words"] = sum(parameters[key] in row["text"] for key in parameters if key.startswith("term"))
        found.sort(key=lambda row: (-row.pop("words"), -(row["cosine"] or 0.0)))
        yield from found[: parameters["limit"]]


@pytest.fixture
def backend(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CosmosMemoryBackend]:
    address = CosmosAddress(emulator.url, KEY, tmp_path.name[-40:], "searched", searched=True, discover=False)
    opened = CosmosMemoryBackend(tmp_path, FlakyEmbedder(HashingEmbedder()), address)
    monkeypatch.setattr(opened._container, "query", Service(opened).query)
    yield opened
    opened.close()


@pytest.mark.process
def test_the_condition_selects_exactly_the_entries_of_the_scope(backend: CosmosMemoryBackend) -> None:
    chooser = random.Random(11)
    backend.store([random_entry(chooser, number) for number in range(120)])
    with backend._database.reading() as connection:
        ids = {row["num"]: row["id"] for row in connection.execute("SELECT num, id FROM entries")}
    assert len(ids) == 120
    found, negated = 0, 0
    for _ in range(80):
        scope = random_scope(chooser)
        with backend._database.reading() as connection:
            selected = select_scope(connection, scope)
        expected = [entry.id for entry in backend.list(scope, limit=1000)]
        if selected is None:
            assert expected == []
            continue
        query = f"SELECT c.scope.num, c.namespace FROM c WHERE IS_DEFINED(c.text) AND {selected.text}"
        rows = list(backend._container.query(query, **selected.parameters))
        assert {row["namespace"] for row in rows} <= {scope.namespace}
        assert sorted(ids[row["num"]] for row in rows) == expected
        found += len(rows)
        negated += "NOT ARRAY_CONTAINS(@numbers" in selected.text
    assert found > 50 and negated


@pytest.mark.process
@pytest.mark.parametrize(("numbers", "read"), [(2, 4), (20, 30), (2, 100), (30, 60)])
def test_a_scope_with_too_many_entries_is_selected_from_the_results(
    backend: CosmosMemoryBackend, monkeypatch: pytest.MonkeyPatch, numbers: int, read: int
) -> None:
    monkeypatch.setattr("agentformer.memory.backends.cosmos_db.backend._MAX_NUMBERS", numbers)
    monkeypatch.setattr("agentformer.memory.backends.cosmos_db.backend._MAX_READ", read)
    entries = backend.store([make_entry(f"numbat {n}", session_id="ab"[n % 2]) for n in range(40)])
    hits = backend.search(Query("numbat", Scope(session_id="b"), limit=100))
    assert sorted(hit.entry.id for hit in hits) == sorted(entry.id for entry in entries[1::2])


@pytest.mark.process
def test_a_search_returns_the_entries_that_the_service_ranks(backend: CosmosMemoryBackend) -> None:
    texts = ("the numbat eats termites", "the numbat sleeps", "zebras eat grass " * 40)
    numbats = backend.store([make_entry(text) for text in texts])
    other = backend.store([make_entry("the numbat of another tenant", namespace="other")])
    hits = backend.search(Query("numbat termites"))
    assert [hit.entry.id for hit in hits][:2] == [numbats[0].id, numbats[1].id]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True) and hits[0].score == 1.0
    assert hits[0].dense_score is not None and hits[0].span is not None
    assert hits[0].entry.content[hits[0].span.start : hits[0].span.end] == texts[0]
    assert other[0].id not in [hit.entry.id for hit in hits]
    backend.update(numbats[0].id, {"session_id": "s"})  # the items of the windows follow
    assert [hit.entry.id for hit in backend.search(Query("numbat", Scope(session_id="s")))] == [numbats[0].id]
    (long,) = backend.search(Query("zebras", limit=1, mode="lexical"))
    assert long.entry.id == numbats[2].id and len(list(backend.search(Query("numbat", limit=2)))) == 2
    backend.remove([numbats[0].id])
    assert numbats[0].id not in [hit.entry.id for hit in backend.search(Query("numbat termites"))]
    assert not backend.search(Query("  ")) and not backend.search(Query("!?", mode="lexical"))


@pytest.mark.process
def test_entries_without_vectors_are_found_by_words(backend: CosmosMemoryBackend) -> None:
    backend.store([make_entry("a first entry")])
    embedder: Any = backend._embedder
    embedder.down = True
    (entry,) = backend.store([make_entry("a kakapo stored without its vector")])
    hits = backend.search(Query("kakapo"))
    assert hits[0].entry.id == entry.id and hits.warnings and "only words" in hits.warnings[0]
    embedder.down = False
    assert backend.embed_pending() == 0
    assert [hit.entry.id for hit in backend.search(Query("kakapo", limit=1))] == [entry.id]
    assert backend.search(Query("kakapo", limit=1, mode="dense"))[0].entry.id == entry.id


@pytest.mark.process
def test_a_decayed_salience_limits_a_search(backend: CosmosMemoryBackend) -> None:
    faded = [
        make_entry(f"numbat {n}", category="context", created_at=MOMENT - timedelta(days=30), salience=0.9)
        for n in range(30)
    ]
    (fresh,) = backend.store([*faded, make_entry("numbat that is fresh", category="context", created_at=MOMENT)])[-1:]
    scope = Scope(min_salience=0.5, decay=Decay({"context": 0.9}, MOMENT))
    assert [hit.entry.id for hit in backend.search(Query("numbat", scope, limit=2))] == [fresh.id]


@pytest.mark.process
def test_a_model_with_vectors_of_another_length_is_refused(backend: CosmosMemoryBackend) -> None:
    backend.store([make_entry("a numbat")])
    with pytest.raises(InvalidInput, match="another length"):
        backend.reembed(HashingEmbedder(dimension=64))
    assert len(backend.spaces()) == 1 and backend.reembed(HashingEmbedder()) is not None
