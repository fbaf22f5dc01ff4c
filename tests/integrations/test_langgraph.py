"""The store of LangGraph does what its `InMemoryStore` does."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("langgraph.store.base", reason="langgraph is not installed; run `make test-integrations`")

from langgraph.store.memory import InMemoryStore

from agentformer import AgentFormer
from agentformer.integrations.langgraph import AgentFormerStore

NAMES = ("users", "docs", "v1", "a b", "ä")
VALUES: tuple[Any, ...] = (None, True, 0, 1, 2.5, "text", "", [1, {"a": 2}], {"deep": {"er": 1}})
FILTERS: tuple[Any, ...] = (
    *({"n": 1}, {"n": {"$gte": 2}}, {"n": {"$lt": 3, "$ne": 0}}, {"s": "text"}, {"s": None}, {"s": {"$ne": None}}),
    *({"s": [1, {"a": 2}]}, {"s": {"$eq": "text"}}, {"n": 2, "s": "text"}, {"absent": {"$ne": 1}}),
)


def plain(items: Any) -> Any:
    if isinstance(items, list):
        values = [plain(item) for item in items]
        return sorted(values, key=repr) if values and isinstance(values[0], dict) else values
    return {"namespace": items.namespace, "key": items.key, "value": items.value} if hasattr(items, "key") else items


@pytest.mark.slow
def test_two_thousand_random_operations_do_what_the_store_in_memory_does(af: AgentFormer) -> None:
    choose = random.Random(3)
    ours, theirs = AgentFormerStore(af), InMemoryStore()
    paths = [tuple(choose.sample(NAMES, choose.randint(1, 3))) for _ in range(8)]
    live: set[tuple[tuple[str, ...], str]] = set()
    found = 0
    for _ in range(2000):
        path, key = choose.choice(paths), f"k{choose.randrange(6)}"
        kind = choose.choice(("put", "put", "get", "delete", "search", "search", "list"))
        if kind == "put":
            value = {"n": choose.randrange(5), "s": choose.choice(VALUES)} if choose.random() < 0.9 else {"n": 7}
            index: Any = choose.choice((None, None, False))
            for store in (ours, theirs):
                store.put(path, key, value, index=index)
            live.add((path, key))
        elif kind == "delete":
            for store in (ours, theirs):
                store.delete(path, key)
            live.discard((path, key))
        elif kind == "get":
            assert plain(ours.get(path, key)) == plain(theirs.get(path, key))
        elif kind == "search":
            prefix = path[: choose.randint(0, len(path))]
            options = {"filter": choose.choice((None, *FILTERS)), "limit": 1000}
            one, other = ours.search(prefix, **options), theirs.search(prefix, **options)
            assert plain(one) == plain(other), options
            found += len(one)
        else:
            options = choose.choice(({}, {"prefix": ("users",)}, {"suffix": ("*", "v1")}, {"max_depth": 1}))
            expected = set(theirs.list_namespaces(**options))
            if not options.get("max_depth"):
                expected &= {space for space, _ in live}  # an empty namespace is not listed
            else:
                expected &= {space[:1] for space, _ in live}
            assert set(ours.list_namespaces(**options)) == expected
    assert found > 3000


def test_a_query_ranks_and_a_limit_pages(af: AgentFormer) -> None:
    store = AgentFormerStore(af)
    for n in range(6):
        store.put(("notes",), f"n{n}", {"text": f"the lighthouse number {n}", "n": n})
    store.put(("notes",), "tea", {"text": "Aino prefers green tea", "n": 9})
    store.put(("notes",), "raw", {"text": "green tea, raw"}, index=False)
    first = store.search(("notes",), query="Which tea does Aino prefer?", limit=1)[0]
    assert (first.key, first.value["n"]) == ("tea", 9) and first.score is not None and 0 < first.score <= 1
    assert all(item.key != "raw" for item in store.search(("notes",), query="green tea raw", limit=10))
    assert [i.key for i in store.search(("notes",), filter={"n": {"$lt": 6}}, limit=2, offset=3)] == ["n3", "n4"]
    store.put(("notes",), "tea", {"text": "Aino prefers black tea"}, index=["text"])
    entry = next(e for e in af.memory.list(namespace="langgraph") if e.metadata["key"] == "tea")
    assert entry.content == "Aino prefers black tea" and len(af.memory.history(entry.id)) == 1


def test_the_event_loop_is_never_blocked(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.integrations.conftest import SlowEmbedder, ticks_during

    store = AgentFormerStore(af)
    store.put(("a",), "k", {"text": "lighthouse"})
    embedder = SlowEmbedder()
    monkeypatch.setattr(type(af.embedder), "embed_query", lambda self, text: embedder.embed_query(text))
    assert ticks_during(lambda n: store.asearch(("a",), query=f"lighthouse {n}")) >= 10


def test_entries_of_users_and_of_other_programs_are_no_items(af: AgentFormer) -> None:
    store = AgentFormerStore(af)
    place: Any = {"namespace": "langgraph", "source_type": "langgraph"}
    af.memory.store("tea", source_id='["a", "k"]', user_id="aino", metadata={"path": ["b"], "key": "k"}, **place)
    store.put(("a",), "k", {"tea": 1})
    af.memory.store("tea", source_id="x", **place)
    af.memory.store("tea", source_id="y", metadata={"path": 5, "key": "k"}, **place)
    assert store.list_namespaces() == [("a",)]
    assert [item.key for item in store.search(())] == ["k"] == [item.key for item in store.search((), query="tea")]
    store.delete(("a",), "k")
    assert store.get(("a",), "k") is None and af.memory.count(namespace="langgraph") == 3


def test_an_item_is_returned_until_its_time_to_live_ends(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [datetime.now(UTC)]
    for module in ("records.codec", "records.sqlite.scopes", "integrations.langgraph", "memory.memory_cleaner"):
        monkeypatch.setattr(f"agentformer.{module}.now", lambda: clock[0])
    store = AgentFormerStore(af)
    store.put(("codes",), "door", {"text": "the code of the door is 4711"}, ttl=60)
    store.put(("codes",), "gate", {"text": "the code of the gate is 4712"})
    stored = af.memory.list(namespace="langgraph", where={"key": "door"})
    clock[0] += timedelta(minutes=3)
    assert store.get(("codes",), "door") is not None  # too early to store a new version
    assert af.memory.list(namespace="langgraph", where={"key": "door"}) == stored
    clock[0] += timedelta(minutes=50)
    assert store.get(("codes",), "door", refresh_ttl=True) is not None
    clock[0] += timedelta(minutes=50)
    found = store.search(("codes",), query="code of the door", refresh_ttl=False)
    assert {item.key for item in found} == {"door", "gate"}
    clock[0] += timedelta(minutes=11)
    assert store.get(("codes",), "door") is None
    assert [item.key for item in store.search(("codes",))] == ["gate"]
    store.put(("codes",), "door", {"text": "the code of the door is 4713"}, ttl=60)
    assert [
        item.value["text"][-4:] for item in store.search(("codes",), filter={"text": {"$gt": "the code of the d"}})
    ] == [*("4712", "4713")]
    clock[0] += timedelta(minutes=61)
    assert len(af.memory.clean().expired) == 1
    store.delete(("codes",), "door")
    assert len(af.memory.list(namespace="langgraph", include_archived=True)) == 1
