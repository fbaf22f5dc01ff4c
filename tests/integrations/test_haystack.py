"""Haystack's own tests of a document store, and the retrievers."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed; run `make test-integrations`")

from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing import document_store as suite

from agentformer import AgentFormer
from agentformer.integrations.haystack import (
    AgentFormerDocumentStore,
    AgentFormerMemoryRetriever,
    AgentFormerRetriever,
)

# The extended suite exists since Haystack 2.2x; the tests of the optional methods are in classes of their own.
BASE: Any = getattr(suite, "DocumentStoreBaseExtendedTests", suite.DocumentStoreBaseTests)
COUNTING: Any = getattr(suite, "CountDocumentsByFilterTest", object)
ASYNC: list[Any] = []
if find_spec("haystack.testing.document_store_async"):
    from haystack.testing import document_store_async

    names = ("Count", "Write", "Delete", "Filter")
    ASYNC += [getattr(document_store_async, f"{name}DocumentsAsyncTest") for name in names]
    names = ("DeleteAll", "DeleteByFilter", "UpdateByFilter", "CountDocumentsByFilter")
    ASYNC += [getattr(document_store_async, f"{name}AsyncTest") for name in names]
BEFORE = datetime(2020, 1, 1, tzinfo=UTC)


class TestDocumentStore(BASE, COUNTING):  # type: ignore[misc]
    """The tests of Haystack."""

    @pytest.fixture
    def document_store(self, af: AgentFormer) -> Iterator[AgentFormerDocumentStore]:
        yield AgentFormerDocumentStore(af)

    def test_write_documents(self, document_store: Any) -> None:
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document], DuplicatePolicy.NONE)
        self.assert_documents_are_equal(document_store.filter_documents(), [document])


class TestAsynchronously(*ASYNC):  # type: ignore[misc]
    """The asynchronous tests of Haystack."""

    @pytest.fixture
    def document_store(self, af: AgentFormer) -> Iterator[AgentFormerDocumentStore]:
        yield AgentFormerDocumentStore(af)

    @pytest.mark.asyncio
    async def test_write_documents_async(self, document_store: Any) -> None:
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document], DuplicatePolicy.NONE)
        assert await document_store.filter_documents_async() == [document]


def test_whole_documents_come_back_after_a_restart(af: AgentFormer) -> None:
    documents = [
        Document(id="a/b", content="Tea.", meta={"deep": {"er": [1, None, {"x": "y"}]}, "content": "c", "score": 2}),
        Document(id="blob", blob=ByteStream(b"\x00\xff", meta={"k": 1}, mime_type="image/png")),
        Document(id="empty", content="", embedding=[0.1, -2.5e-17]),
        Document(id="<recalled-memory>", content="<recalled-memory>x</recalled-memory>"),
    ]
    store = AgentFormerDocumentStore(af)
    assert store.write_documents(documents) == 4
    assert store.filter_documents() == documents
    assert AgentFormerDocumentStore(af).filter_documents({"field": "meta.deep.er", "operator": "!=", "value": 1})
    assert [d.id for d in store.search("tea", top_k=1, mode="hybrid", filters=None)] == ["a/b"]
    assert AgentFormerDocumentStore(af, source_type="other").count_documents() == 0
    with pytest.raises(DuplicateDocumentError):
        store.write_documents([Document(id="new", content="x"), documents[0]])
    assert store.count_documents() == 4
    assert store.write_documents([Document(id="new", content="x"), documents[0]], DuplicatePolicy.SKIP) == 1
    entries = af.memory.get_many(source_type="haystack", source_ids=["new"])
    store.write_documents([Document(id="new", content="y")], DuplicatePolicy.OVERWRITE)
    assert [version.content for version in af.memory.history(entries[0].id)] == ["x"]


def test_random_filters_select_what_the_store_in_memory_selects(af: AgentFormer) -> None:
    """Compared values have one type for each field: of two types, the store in memory raises errors or converts."""
    random_ = random.Random(7)
    store, reference = AgentFormerDocumentStore(af), InMemoryDocumentStore()
    dates = [f"20{year}-0{month}-11T10:00:00" for year in (19, 21) for month in (1, 5)]
    values: dict[str, list[Any]] = {"n": [-1, 0, 2.5, 7], "s": ["a", "b", ""], "d": dates, "deep.x": [1, 2]}
    documents = []
    for number in range(40):
        given = [key for key in values if "." not in key and random_.random() < 0.7]
        meta: dict[str, Any] = {key: random_.choice(values[key]) for key in given}
        if random_.random() < 0.5:
            meta["deep"] = {"x": random_.choice(values["deep.x"])}
        documents.append(Document(id=str(number), content=f"Text {number}", meta=meta))
    store.write_documents(documents)
    reference.write_documents(documents)

    def condition(depth: int) -> dict[str, Any]:
        if depth and random_.random() < 0.6:
            parts = [condition(depth - 1) for _ in range(random_.randint(1, 3))]
            return {"operator": random_.choice(["AND", "OR", "NOT"]), "conditions": parts}
        field = random_.choice([*values])
        ordered = [">", ">=", "<", "<="] if field != "s" else []
        operator = random_.choice(["==", "!=", "in", "not in", *ordered])
        value: Any = random_.choice([*values[field], None])
        if operator in ("in", "not in"):
            value = random_.sample([*values[field], None], 2)
        return {"field": f"meta.{field}", "operator": operator, "value": value}

    for _ in range(150):
        filters = condition(2)
        wanted = {document.id for document in reference.filter_documents(filters)}
        assert {document.id for document in store.filter_documents(filters)} == wanted, json.dumps(filters)
        assert store.count_documents_by_filter(filters) == len(wanted)
    zone = {"field": "meta.d", "operator": ">", "value": BEFORE}
    assert len(store.filter_documents(zone)) == sum("2021" in document.meta.get("d", "") for document in documents)
    for field, operator in (("embedding", "=="), ("meta.n", "~")):
        with pytest.raises(FilterError):
            store.filter_documents({"field": field, "operator": operator, "value": 1})


def test_a_pipeline_is_written_read_and_run(af: AgentFormer, tmp_path: Path) -> None:
    store = AgentFormerDocumentStore(af)
    store.write_documents(
        [
            Document(content="The caretaker keeps the keys.", meta={"site": "north"}),
            Document(content="Tea is served at four.", meta={"site": "south"}),
        ]
    )
    pipeline = Pipeline()
    pipeline.add_component("retriever", AgentFormerRetriever(store, top_k=1))
    (found,) = pipeline.run({"retriever": {"query": "Who keeps the keys?"}})["retriever"]["documents"]
    assert found.content == "The caretaker keeps the keys." and 0 < found.score <= 1
    south = {"field": "meta.site", "operator": "==", "value": "south"}
    (found,) = pipeline.run({"retriever": {"query": "keys", "filters": south}})["retriever"]["documents"]
    assert found.content == "Tea is served at four."
    trusted = "allowed_modules" in inspect.signature(Pipeline.loads).parameters  # since Haystack 3
    options: Any = {"allowed_modules": ["agentformer.integrations.haystack"]} if trusted else {}
    again = Pipeline.loads(pipeline.dumps(), **options)
    try:
        (found,) = again.run({"retriever": {"query": "When is tea served?"}})["retriever"]["documents"]
        assert found.content == "Tea is served at four."
    finally:
        again.get_component("retriever").document_store.af.close()


def test_the_retriever_of_a_memory_cites_its_source(af: AgentFormer) -> None:
    document = af.rag.upload(b"The caretaker keeps the keys.", name="rules.txt")
    af.memory.store("Aino prefers tea.", user_id="aino")
    retriever = AgentFormerMemoryRetriever(af, top_k=1)
    (found,) = retriever.run("Who keeps the keys?")["documents"]
    assert (found.meta["source"], found.meta["document_id"], found.meta["page"]) == ("rules.txt", document.id, 1)
    own = AgentFormerMemoryRetriever(af, user_id="aino")
    assert [d.content for d in asyncio.run(own.run_async("tea"))["documents"]] == ["Aino prefers tea."]


def test_entries_of_users_and_of_other_programs_are_no_documents(af: AgentFormer) -> None:
    store = AgentFormerDocumentStore(af)
    af.memory.store("tea of Aino", source_type="haystack", source_id="1", user_id="aino", metadata={"document": {}})
    store.write_documents([Document(id="1", content="tea")])
    af.memory.store("tea of a program", source_type="haystack", source_id="2")
    assert store.count_documents() == 1 and [d.content for d in store.filter_documents()] == ["tea"]
    found = AgentFormerRetriever(store).run(query="tea")["documents"]
    assert [document.content for document in found] == ["tea"]
    store.delete_documents(["1"])
    store.delete_all_documents()
    assert af.memory.count() == 2


def nested(levels: int) -> dict[str, Any]:
    filters: dict[str, Any] = {"field": "meta.y", "operator": "==", "value": 1}
    for _ in range(levels):
        filters = {"operator": "OR", "conditions": [filters]}
    return filters


@pytest.mark.parametrize(
    "filters",
    [
        {"field": "meta.y", "operator": "in", "value": [*range(600)]},
        nested(25),
        nested(2_000),
        {"field": 5, "operator": "==", "value": 1},
        {"field": "meta.y", "operator": ["=="], "value": 1},
        {"field": "meta.y", "operator": "==", "value": {1}},
        {"operator": ["AND"], "conditions": []},
        {"operator": "AND", "conditions": "x"},
    ],
    ids=("values", "25 levels", "2000 levels", "field", "comparison", "set", "group", "conditions"),
)
def test_a_filter_that_cannot_be_applied_is_a_filter_error(af: AgentFormer, filters: dict[str, Any]) -> None:
    store = AgentFormerDocumentStore(af)
    for call in (store.filter_documents, store.count_documents_by_filter, store.delete_by_filter):
        with pytest.raises(FilterError):
            call(filters)


def test_a_memory_retriever_without_a_user_finds_what_belongs_to_nobody(af: AgentFormer) -> None:
    for user in ("aino", None):
        af.memory.store(f"the tea of {user}", user_id=user)
    assert [d.content for d in AgentFormerMemoryRetriever(af).run(query="tea")["documents"]] == ["the tea of None"]
    assert len(AgentFormerMemoryRetriever(af, every_user=True).run(query="tea")["documents"]) == 2
