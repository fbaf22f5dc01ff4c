"""LangChain: a vector store, a retriever with citations, and a middleware that adds memories to the messages of an
agent.

LangChain runs the synchronous methods in a thread when a program calls the asynchronous ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer
from agentformer.integrations import hit_metadata, missing, owned, readable, recalled, records
from agentformer.types import DEFAULT_NAMESPACE, Hit, MemoryEntry, Scope, Where

try:
    import numpy as np
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import run_in_executor
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance
    from pydantic import Field
except ImportError as error:
    raise missing("langchain", error) from error

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.messages import HumanMessage
except ImportError:  # the vector store and the retriever need only langchain-core
    AgentMiddleware = object  # type: ignore[assignment,misc]

_EVERYTHING = -1.0  # a noise floor that keeps every hit, since a vector store returns k documents if it has them


class AgentFormerEmbeddings(Embeddings):
    """The embedder of a memory in the form of LangChain's `Embeddings`."""

    def __init__(self, af: AgentFormer) -> None:
        self._embedder = af.embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text."""
        return [[float(value) for value in vector] for vector in self._embedder.embed_documents(texts)]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return [float(value) for value in self._embedder.embed_query(text)]


class AgentFormerVectorStore(VectorStore):
    """A vector store of LangChain in a memory. A document is an entry whose `source_id` is the id of the document.
    Several stores with different values of `source_type` can share a memory. A document that is added again keeps its
    entry and its history. Entries that belong to a user or a project are not documents of the store.

    `filter` of a search is a filter of AgentFormer (docs/MEMORY.md) over the metadata of the documents. `mode` is
    `hybrid` (default), `dense` or `lexical`.
    """

    def __init__(
        self,
        af: AgentFormer,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        source_type: str = "langchain",
        mode: str = "hybrid",
    ) -> None:
        self._af = af
        self._namespace = namespace
        self._source_type = source_type
        self._mode = mode

    @property
    def embeddings(self) -> Embeddings:
        """The embedder of the memory."""
        return AgentFormerEmbeddings(self._af)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[Any, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Store texts, and return their ids. A text whose id is stored already replaces the stored text."""
        contents = list(texts)
        names = [name or str(uuid.uuid4()) for name in ids or [None] * len(contents)]
        described = metadatas or [{}] * len(contents)
        if not len(contents) == len(names) == len(described):
            raise InvalidInput("ids", "and metadatas must have as many items as texts")
        items = [
            {"content": content, "metadata": metadata, "source_id": name}
            for content, metadata, name in zip(contents, described, names, strict=True)
        ]
        common = {"namespace": self._namespace, "source_type": self._source_type, "verbatim": True}
        self._af.memory.upsert_many(items, **common)  # type: ignore[arg-type]
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents by id, and return True. Without ids, delete all documents of this store. Missing ids are
        ignored."""
        if ids is None:
            self._af.memory.remove(Scope(self._namespace, source_type=self._source_type, **owned()))
        elif ids:
            found = records(self._af, self._source_type, ids, namespace=self._namespace, archived=True)
            self._af.memory.remove_many([entry.id for entry in found])
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids. Missing ids are left out."""
        return [_document(entry) for entry in records(self._af, self._source_type, ids, namespace=self._namespace)]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return up to `k` documents, best first."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(  # type: ignore[override]
        self, query: str, k: int = 4, filter: Where | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return up to `k` documents with their scores, best first. A score is in 0..1, and higher is better. Raises
        `InvalidInput` for a filter or an option of another vector store."""
        _check_options(kwargs)
        return [(_document(hit.entry), hit.score) for hit in self._search(query, k, filter)]

    async def asimilarity_search_with_score(self, *args: Any, **kwargs: Any) -> list[tuple[Document, float]]:
        """Run `similarity_search_with_score` in a thread."""
        found: list[tuple[Document, float]] = await run_in_executor(
            None, self.similarity_search_with_score, *args, **kwargs
        )
        return found

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Where | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return up to `k` of the best `fetch_k` documents, chosen so that they differ from each other. With
        `lambda_mult` 1, only relevance counts, and with 0, only the difference."""
        _check_options(kwargs)
        entries = [hit.entry for hit in self._search(query, fetch_k, filter)]
        if not entries:
            return []
        embeddings = AgentFormerEmbeddings(self._af)
        vectors = embeddings.embed_documents([entry.content for entry in entries])
        query_vector = np.array(embeddings.embed_query(query), dtype=np.float32)
        best = maximal_marginal_relevance(query_vector, vectors, lambda_mult=lambda_mult, k=k)
        return [_document(entries[number]) for number in best]

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[Any, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> AgentFormerVectorStore:
        """Store texts in the memory of the keyword argument `af`, and return the store. The store uses the embedder of
        the memory, so `embedding` must be None or an `AgentFormerEmbeddings`."""
        if "af" not in kwargs or not (embedding is None or isinstance(embedding, AgentFormerEmbeddings)):
            raise InvalidInput("af", "is missing, or embedding is not the embedder of a memory; give af=connect(...)")
        store = cls(**kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: score

    def _search(self, query: str, k: int, filter: Where | None) -> Sequence[Hit]:
        if not query.strip():
            return []
        _check_filter(filter)
        scope: dict[str, Any] = {"namespace": self._namespace, "source_type": self._source_type, **owned(filter)}
        return self._af.memory.search(query, limit=k, mode=self._mode, noise_floor=_EVERYTHING, **scope)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for options of a search that this store does not have. Ignoring one, such as a filter under
    another name, would return documents that the caller has excluded."""
    if options:
        raise InvalidInput(min(options), "is no option of a search in this store; it has k and filter")


def _check_filter(where: Any) -> None:
    """Raise `InvalidInput` for a function, and for operators such as `$gte`, which filters of other stores have."""
    if callable(where):
        raise InvalidInput("filter", "is a function; give a mapping, such as {'year': 2026} (docs/MEMORY.md)")
    for key, value in where.items() if isinstance(where, Mapping) else ():
        if str(key).startswith("$"):
            raise InvalidInput(
                "filter",
                f"has the operator {key}; write {{'type': 'gte', 'key': 'year', 'value': 2026}} instead of "
                "{'year': {'$gte': 2026}} (docs/MEMORY.md)",
            )
        for each in value if isinstance(value, (list, tuple)) else (value,):
            _check_filter(each if isinstance(each, Mapping) else None)


class AgentFormerRetriever(BaseRetriever):
    """A retriever over documents and memories. The metadata of a result contain `entry_id`, `kind` and `score`. For a
    passage, they also contain its citation: `source`, `page`, `start`, `end` and `document_id`.

    `scope` contains filters of `memory.search`, such as `namespace`, `user_id`, `kinds` and `where`. Without a user,
    only entries that belong to no user are found; with `every_user=True`, entries of all users are found."""

    af: Any = Field(description="the result of `connect`")
    k: int = 4
    mode: str = "hybrid"
    relevant_only: bool = False
    scope: Mapping[str, Any] = {}

    def _get_relevant_documents(self, query: str, *, run_manager: Any = None, **kwargs: Any) -> list[Document]:
        _check_options({name: value for name, value in kwargs.items() if name != "k"})
        limit = kwargs.get("k", self.k)
        options = {"mode": self.mode, "relevant_only": self.relevant_only, **readable(self.scope)}
        hits = self.af.memory.search(query, limit=limit, **options) if query.strip() else []
        return [Document(id=hit.entry.id, page_content=hit.entry.content, metadata=hit_metadata(hit)) for hit in hits]


class RecallMiddleware(AgentMiddleware):  # type: ignore[misc]
    """Gives the model of an agent the memories about the last message of the user, within `max_tokens` tokens. The
    memories are sent as an additional first message with the role of the user. A mark identifies this message as
    recalled memory, so that the model treats the message as data, and so that the message is not stored again. `place`
    selects the memories: `namespace`, `user_id`, `agent_id`, `project` and `session_id`. Without a user, only memories
    that belong to no user are recalled; with `every_user=True`, memories of all users are recalled."""

    def __init__(self, af: AgentFormer, *, max_tokens: int = 1_000, **place: Any) -> None:
        super().__init__()
        self._af = af
        self._max_tokens = max_tokens
        self._place = place

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Put the memories before the conversation, and call the model."""
        return handler(self._with_memories(request))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Put the memories before the conversation, and call the model. The search runs in a thread."""
        return await handler(await run_in_executor(None, self._with_memories, request))

    def _with_memories(self, request: Any) -> Any:
        question = next((m.text for m in reversed(request.messages) if isinstance(m, HumanMessage)), "")
        memories = recalled(self._af, question, self._max_tokens, self._place)
        return request.override(messages=[HumanMessage(memories), *request.messages]) if memories else request


def _document(entry: MemoryEntry) -> Document:
    return Document(id=entry.source_id, page_content=entry.content, metadata=dict(entry.metadata))
