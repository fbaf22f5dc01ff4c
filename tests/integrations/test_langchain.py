"""The adapters of LangChain pass LangChain's own suites."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_tests", reason="langchain-tests is not installed; run `make test-integrations`")

from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.messages import HumanMessage
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

from agentformer import AgentFormer
from agentformer.errors import InvalidInput
from agentformer.integrations.langchain import AgentFormerRetriever, AgentFormerVectorStore, RecallMiddleware
from tests.integrations.conftest import ticks_during


@pytest.mark.asyncio
class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, af: AgentFormer) -> AgentFormerVectorStore:  # type: ignore[override]
        return AgentFormerVectorStore(af)


@pytest.mark.asyncio
class TestRetriever(RetrieversIntegrationTests):
    _af: AgentFormer

    @pytest.fixture(autouse=True)
    def _stored(self, af: AgentFormer) -> None:
        for n in range(5):
            af.memory.store(f"The lighthouse number {n} was built in {1890 + n}.")
        type(self)._af = af

    @property
    def retriever_constructor(self) -> type[AgentFormerRetriever]:
        return AgentFormerRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"af": self._af}

    @property
    def retriever_query_example(self) -> str:
        return "When was the lighthouse built?"


def test_full_cleanup_of_an_index_deletes_what_is_gone(af: AgentFormer) -> None:
    store = AgentFormerVectorStore(af)
    manager = InMemoryRecordManager("frames")
    manager.create_schema()
    pages = [Document(f"page {n}", metadata={"source": f"{n}.md"}) for n in range(4)]
    options: dict[str, Any] = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
    first = index(pages, manager, store, **options)
    again = index(pages, manager, store, **options)
    changed = index([*pages[:2], Document("page 3, changed", metadata={"source": "3.md"})], manager, store, **options)
    assert [(r["num_added"], r["num_skipped"], r["num_deleted"]) for r in (first, again, changed)] == [
        (4, 0, 0),
        (0, 4, 0),
        (1, 2, 2),
    ]
    assert sorted(entry.content for entry in af.memory.list()) == ["page 0", "page 1", "page 3, changed"]


def test_filters_scores_and_different_results(af: AgentFormer) -> None:
    store = AgentFormerVectorStore(af)
    store.add_texts([f"the budget of {year}" for year in range(2020, 2026)], [{"year": y} for y in range(2020, 2026)])
    recent = {"type": "gte", "key": "year", "value": 2024}
    assert {d.metadata["year"] for d in store.similarity_search("budget", filter=recent)} == {2024, 2025}
    scores = [score for _, score in store.similarity_search_with_relevance_scores("budget of 2021", k=3)]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
    assert len(store.max_marginal_relevance_search("budget", k=2, filter=recent)) == 2
    other = AgentFormerVectorStore.from_texts(["other"], af=af, source_type="other", ids=["a"])
    assert [d.page_content for d in other.similarity_search("budget")] == ["other"]
    store.delete()
    assert store.similarity_search("budget") == [] and other.get_by_ids(["a"])[0].page_content == "other"


def test_a_retrieved_passage_names_its_page(af: AgentFormer, tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("The caretaker keeps the keys of the boat house.")
    document = af.rag.upload(tmp_path / "rules.txt")
    (found,) = AgentFormerRetriever(af=af, k=1).invoke("Who keeps the keys?")
    assert (found.metadata["source"], found.metadata["document_id"]) == ("rules.txt", document.id)
    assert (found.metadata["page"], found.metadata["start"]) == (1, 0)


def test_an_agent_reads_what_is_remembered(af: AgentFormer) -> None:
    agents = pytest.importorskip("langchain.agents", reason="langchain is not installed")
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    from agentformer.integrations.langchain import RecallMiddleware

    class Recorder(GenericFakeChatModel):
        seen: list[Any] = []  # noqa: RUF012 - a field of pydantic

        def _generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
            self.seen.append(messages)
            return super()._generate(messages, *args, **kwargs)

    af.memory.store("Aino prefers green tea.")
    model = Recorder(messages=iter([AIMessage("Green tea."), AIMessage("Green tea.")]))
    agent = agents.create_agent(model, system_prompt="Be brief.", middleware=[RecallMiddleware(af)])
    question = {"messages": [{"role": "user", "content": "Which tea does Aino prefer?"}]}
    agent.invoke(question)
    asyncio.run(agent.ainvoke(question))
    for messages in model.seen:
        assert [message.type for message in messages] == ["system", "human", "human"]
        assert "Aino prefers green tea." in messages[1].text


def test_the_event_loop_is_never_blocked(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AgentFormerVectorStore(af)
    store.add_texts(["a lighthouse"])
    slow = af.memory.search

    def search(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return slow(*args, **kwargs)

    monkeypatch.setattr(af.memory, "search", search)
    assert ticks_during(lambda n: store.asimilarity_search("lighthouse")) >= 10


def test_a_vector_store_has_only_entries_of_nobody(af: AgentFormer) -> None:
    store = AgentFormerVectorStore(af)
    af.memory.store("tea of Aino", source_type="langchain", source_id="1", user_id="aino")
    store.add_texts(["tea of nobody"], ids=["1"])
    assert [document.page_content for document in store.get_by_ids(["1"])] == ["tea of nobody"]
    either = {"type": "or", "filters": [{"type": "exists", "key": "a", "value": False}, {"a": 1}]}
    for filter in (None, either, {"type": "exists", "key": "a", "value": False}):
        found = store.similarity_search("tea", filter=filter)
        assert [document.page_content for document in found] == ["tea of nobody"]
    store.delete(["1"])
    store.delete()
    assert [entry.content for entry in af.memory.list()] == ["tea of Aino"]


def test_a_retriever_without_a_user_finds_what_belongs_to_nobody(af: AgentFormer) -> None:
    for user in ("aino", None):
        af.memory.store(f"the tea of {user}", user_id=user)
    for scope, users in (({}, {None}), ({"user_id": "aino"}, {"aino"}), ({"every_user": True}, {"aino", None})):
        found = AgentFormerRetriever(af=af, scope=scope).invoke("tea")
        assert {document.page_content for document in found} == {f"the tea of {user}" for user in users}


def test_the_middleware_without_a_user_recalls_what_belongs_to_nobody(af: AgentFormer) -> None:
    pytest.importorskip("langchain.agents.middleware", reason="langchain is not installed")
    af.memory.add_message("s1", "user", "Aino drinks green tea.", user_id="aino")
    af.memory.add_message("s2", "user", "The office drinks black tea.")
    request = ModelRequest(messages=[HumanMessage("Which tea?")])
    text = RecallMiddleware(af).wrap_model_call(request, lambda changed: changed.messages[0].content)
    assert "black tea" in text and "green tea" not in text
    text = RecallMiddleware(af, every_user=True).wrap_model_call(request, lambda changed: changed.messages[0].content)
    assert "black tea" in text and "green tea" in text


class ModelRequest:
    """The part of a request that the middleware reads."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages

    def override(self, messages: list[Any]) -> ModelRequest:
        return ModelRequest(messages)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"filter": {"year": {"$gte": 2026}}}, "filter"),
        ({"filter": {"$or": [{"year": 2025}, {"year": 2026}]}}, "filter"),
        ({"filter": lambda metadata: metadata["year"] == 2026}, "filter"),
        ({"where": {"year": 2026}}, "where"),
        ({"pre_filter": {"year": 2026}}, "pre_filter"),
    ],
)
def test_a_filter_of_another_store_is_refused_and_not_ignored(
    af: AgentFormer, options: dict[str, Any], field: str
) -> None:
    store = AgentFormerVectorStore(af)
    store.add_texts(["The pier is red."], [{"year": 2025}])
    for search in (store.similarity_search, store.max_marginal_relevance_search):
        with pytest.raises(InvalidInput) as refused:
            search("pier", **options)
        assert refused.value.field == field
    with pytest.raises(InvalidInput):
        AgentFormerRetriever(af=af).invoke("pier", filter={"year": 2026})
    assert len(store.similarity_search("pier", filter={"year": 2025})) == 1
