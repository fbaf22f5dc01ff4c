"""Haystack: a document store, a retriever for it, and a retriever over documents and memories."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer, connect
from agentformer.integrations import hit_metadata, missing, owned, readable, records
from agentformer.memory.backends import all_entries
from agentformer.types import DEFAULT_NAMESPACE, MemoryEntry, Scope

try:
    from haystack import component, default_from_dict, default_to_dict
    from haystack.dataclasses import Document
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy
    from haystack.errors import FilterError
except ImportError as error:
    raise missing("haystack", error) from error

P = ParamSpec("P")
T = TypeVar("T")

_EVERYTHING = -1.0  # the noise floor of a search that returns every document
_NO_TEXT = "(a document without text)"  # the content of its entry, because an entry needs a text
_KEPT = "document"  # the metadata key with the fields of a document that no filter compares
_VALUE = "meta."  # prefix of the metadata key for a value
_TIME = "time."  # prefix of the metadata key for a date in seconds since 1970
_ORDER = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_LOGIC = {"AND": "and", "OR": "or", "NOT": "and"}  # NOT negates all its conditions together
_NOTHING = {"type": "exists", "key": "$id", "value": False}  # a filter that no entry passes


def _in_thread(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """Return the asynchronous form of a method, which runs the method in a thread."""

    @functools.wraps(method)
    async def run(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await asyncio.to_thread(getattr(self, method.__name__), *arguments, **named)

    return run


class AgentFormerDocumentStore:
    """A document store of Haystack in a memory. A document is an entry whose `source_id` is the id of the document. A
    document that is written again keeps its entry and its history. Entries that belong to a user or a project, and
    entries that another program has stored, are not documents.

    `af` is an open memory. If it is None, `connect(**settings)` opens the memory. The store has only the documents of
    its `source_type`, so several stores can share a memory. Searches use the embedder of the memory. The embeddings of
    documents are stored, but searches do not use them. The methods with the ending `_async` run in a thread."""

    def __init__(
        self,
        af: AgentFormer | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        source_type: str = "haystack",
        **settings: Any,
    ) -> None:
        if af is not None and settings:
            raise InvalidInput(
                "settings", "cannot be given together with af, which already has settings; give only one of the two"
            )
        self.af = af or connect(**settings)
        self._namespace = namespace
        self._source_type = source_type
        self._lock = threading.Lock()  # of writes that first read

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary from which `from_dict` opens the store again. It contains no API keys."""
        settings = self.af.settings
        folders = {"index_dir": str(settings.index_dir), "upload_dir": str(settings.upload_dir)}
        names = {"namespace": self._namespace, "source_type": self._source_type}
        written: dict[str, Any] = default_to_dict(self, **folders, embedder=settings.embedder, **names)
        return written

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AgentFormerDocumentStore:
        """Open the store that `to_dict` has described."""
        store: AgentFormerDocumentStore = default_from_dict(cls, data)
        return store

    def count_documents(self) -> int:
        """Return the number of documents."""
        return self.af.memory.count(**self._within())

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that match the filters, in the order in which they were first written."""
        return [_document(entry) for entry in self._entries(filters)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Store documents, and return the number of written documents. `policy` decides about an id that is stored
        already or given twice. `NONE` and `FAIL` raise `DuplicateDocumentError`, and nothing is written. `SKIP` keeps
        the stored document, and `OVERWRITE` replaces it."""
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise ValueError("documents must be a list of Documents")
        with self._lock:
            new = {document.id: document for document in documents}
            if policy != DuplicatePolicy.OVERWRITE:
                stored = self._stored([*new])
                if policy != DuplicatePolicy.SKIP and (stored or len(new) < len(documents)):
                    doubled = [id for id in new if id in stored] or [document.id for document in documents]
                    raise DuplicateDocumentError(f"documents with these ids exist already: {', '.join(doubled[:5])}")
                new = {id: document for id, document in new.items() if id not in stored}
            place: Any = {"namespace": self._namespace, "source_type": self._source_type, "verbatim": True}
            if new:
                self.af.memory.upsert_many([_new(document) for document in new.values()], **place)
        return len(new) if policy == DuplicatePolicy.SKIP else len(documents)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete the documents with these ids. Missing ids are ignored."""
        if document_ids:
            found = records(self.af, self._source_type, document_ids, namespace=self._namespace, archived=True)
            self.af.memory.remove_many([entry.id for entry in found])

    def delete_all_documents(self) -> None:
        """Delete all documents."""
        self.delete_by_filter({})

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match the filters, and return their number."""
        with self._lock:
            ids = [entry.id for entry in self._entries(filters)]
            return self.af.memory.remove_many(ids) if ids else 0

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set values in the `meta` of the documents that match the filters, and return their number."""
        with self._lock:
            found = [_document(entry) for entry in self._entries(filters)]
            changed = [dataclasses.replace(document, meta={**document.meta, **meta}) for document in found]
            place: Any = {"namespace": self._namespace, "source_type": self._source_type, "verbatim": True}
            if changed:
                self.af.memory.upsert_many([_new(document) for document in changed], **place)
            return len(changed)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that match the filters."""
        return self.af.memory.count(**self._within(filters))

    count_documents_async = _in_thread(count_documents)
    filter_documents_async = _in_thread(filter_documents)
    write_documents_async = _in_thread(write_documents)
    delete_documents_async = _in_thread(delete_documents)
    delete_all_documents_async = _in_thread(delete_all_documents)
    delete_by_filter_async = _in_thread(delete_by_filter)
    update_by_filter_async = _in_thread(update_by_filter)
    count_documents_by_filter_async = _in_thread(count_documents_by_filter)

    def search(self, query: str, *, top_k: int, mode: str, filters: dict[str, Any] | None) -> list[Document]:
        """Return the documents that match a query best, with scores in 0..1. `mode` is `hybrid`, `dense` or
        `lexical`."""
        if not query.strip():
            return []
        within = self._within(filters)
        hits = self.af.memory.search(query, limit=top_k, mode=mode, noise_floor=_EVERYTHING, **within)
        return [_document(hit.entry, hit.score) for hit in hits]

    def _within(self, filters: dict[str, Any] | None = None) -> dict[str, Any]:
        place = {"namespace": self._namespace, "source_type": self._source_type}
        try:
            return {**place, **owned(where_of(filters), has=[_KEPT])}
        except (InvalidInput, RecursionError) as error:
            raise FilterError(f"the memory cannot apply these filters: {error}") from error

    def _entries(self, filters: dict[str, Any] | None) -> Iterator[MemoryEntry]:
        return all_entries(self.af.backend, Scope(**self._within(filters)))

    def _stored(self, ids: Sequence[str]) -> set[str]:
        found = records(self.af, self._source_type, ids, namespace=self._namespace)
        return {entry.source_id or "" for entry in found}


@component
class AgentFormerRetriever:
    """A retriever of an `AgentFormerDocumentStore`, with scores in 0..1. `mode` is `hybrid` (words and vectors),
    `dense` (vectors) or `lexical` (words)."""

    def __init__(
        self,
        document_store: AgentFormerDocumentStore,
        *,
        top_k: int = 10,
        mode: str = "hybrid",
        filters: dict[str, Any] | None = None,
    ) -> None:
        self.document_store = document_store
        self.top_k = top_k
        self.mode = mode
        self.filters = filters

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters of the component."""
        own = {"top_k": self.top_k, "mode": self.mode, "filters": self.filters}
        written: dict[str, Any] = default_to_dict(self, document_store=self.document_store.to_dict(), **own)
        return written

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AgentFormerRetriever:
        """Make the component that `to_dict` has described."""
        given = data["init_parameters"]
        store = given["document_store"]
        if isinstance(store, dict):
            given["document_store"] = AgentFormerDocumentStore.from_dict(store)
        retriever: AgentFormerRetriever = default_from_dict(cls, data)
        return retriever

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None, filters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the documents that match the query best."""
        wanted = filters if filters is not None else self.filters
        found = self.document_store.search(query, top_k=top_k or self.top_k, mode=self.mode, filters=wanted)
        return {"documents": found}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, top_k: int | None = None, filters: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the documents that match the query best. The search runs in a thread."""
        return await asyncio.to_thread(self.run, query, top_k, filters)


@component
class AgentFormerMemoryRetriever:
    """A retriever over documents and memories. The `meta` of a result contain `entry_id`, `kind` and `score`. For a
    passage, they also contain its citation: `source`, `page`, `start`, `end` and `document_id`. `scope` contains
    filters of `memory.search`, such as `user_id`, `kinds` and `where`. Without a user, only entries that belong to no
    user are found; with `every_user=True`, entries of all users are found."""

    def __init__(self, af: AgentFormer, *, top_k: int = 4, mode: str = "hybrid", **scope: Any) -> None:
        self._af = af
        self._top_k = top_k
        self._mode = mode
        self._scope = scope

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
        """Return the passages and memories that match the query best."""
        limit = top_k or self._top_k
        scope = readable(self._scope)
        hits = self._af.memory.search(query, limit=limit, mode=self._mode, **scope) if query.strip() else []
        found = [
            Document(id=hit.entry.id, content=hit.entry.content, meta=hit_metadata(hit), score=hit.score)
            for hit in hits
        ]
        return {"documents": found}

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str, top_k: int | None = None) -> dict[str, Any]:
        """Return the passages and memories that match the query best. The search runs in a thread."""
        return await asyncio.to_thread(self.run, query, top_k)


def _new(document: Document) -> dict[str, Any]:
    """Return a document as an item of `upsert_many`. A document without text gets `_NO_TEXT` and is never found."""
    fields = document.to_dict(flatten=False)
    text, meta = fields.pop("content") or "", fields.pop("meta")
    kept = {name: value for name, value in fields.items() if value is not None and name not in ("id", "score")}
    if not text.strip():
        kept["content"] = document.content
    return {
        "content": text if text.strip() else _NO_TEXT,
        "source_id": document.id,
        "metadata": {_KEPT: {"meta": meta, **kept}, **key_values(meta)},
        "searchable": bool(text.strip()),
    }


def _document(entry: MemoryEntry, score: float | None = None) -> Document:
    fields: Mapping[str, Any] = entry.metadata[_KEPT]
    found: Document = Document.from_dict({"content": entry.content, **fields, "id": entry.source_id, "score": score})
    return found


def key_values(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten `meta` to metadata of an entry, whose values filters can compare. Each key is written as in Haystack's
    filters, such as `meta.author.name`. A date also gets a key such as `time.created`, with the seconds since 1970."""
    found: dict[str, Any] = {}
    for path, value in _paths(meta, ""):
        found[f"{_VALUE}{path}"] = value.isoformat() if isinstance(value, datetime) else value
        if (seconds := _seconds(value)) is not None:
            found[f"{_TIME}{path}"] = seconds
    return found


def where_of(filters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Convert a filter of Haystack to a filter of the memory. Raises `FilterError` for a malformed filter."""
    if not filters:
        return None
    if not isinstance(filters, Mapping):
        raise FilterError(f"filters must be a dictionary, not {type(filters).__name__}")
    return _comparison(filters) if "field" in filters else _group(filters)


def _paths(value: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        yield f"{before}{name}", item
        if isinstance(item, Mapping):
            yield from _paths(item, f"{before}{name}.")


def _seconds(value: Any) -> float | None:
    """Return the time of a date, or of a text that begins like "2024-01-31", in seconds since 1970, or None for any
    other value. The short form "20240131" is not read, because it may be a number. A time without a zone is in UTC."""
    if isinstance(value, str) and len(value) >= 10 and value[4:5] == "-":
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def _group(filters: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("operator", "conditions"):
        if name not in filters:
            raise FilterError(f"'{name}' key missing in {filters}")
    operator, conditions = filters["operator"], filters["conditions"]
    if not isinstance(operator, str) or operator not in _LOGIC:
        raise FilterError(f"Unknown logical operator '{operator}'. Valid operators are: {sorted(_LOGIC)}")
    if not isinstance(conditions, (list, tuple)):
        raise FilterError(f"'conditions' must be a list, not {type(conditions).__name__}")
    parts = [where_of(condition) for condition in conditions]
    if not parts:
        return {"type": "not", "filters": [_NOTHING]} if operator == "AND" else _NOTHING  # an empty AND admits all
    group = {"type": _LOGIC[operator], "filters": parts}
    return {"type": "not", "filters": [group]} if operator == "NOT" else group


def _comparison(condition: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("operator", "value"):
        if name not in condition:
            raise FilterError(f"'{name}' key missing in {condition}")
    path, operator, value = condition["field"], condition["operator"], condition["value"]
    if not isinstance(path, str) or not isinstance(operator, str):
        raise FilterError(f"'field' and 'operator' must be texts in {condition!r:.200}")
    if operator in _ORDER:
        return _ordered(path, _ORDER[operator], value)
    if operator in ("==", "!="):
        equal = _equal(path, value)
        return equal if operator == "==" else {"type": "not", "filters": [equal]}
    if operator not in ("in", "not in"):
        raise FilterError(f"Unknown comparison operator '{operator}'")
    if not isinstance(value, list):
        raise FilterError(f"Filter value must be a `list` when using operator '{operator}', received {type(value)}")
    parts = [_equal(path, item) for item in value]
    any_equal = {"type": "or", "filters": parts} if parts else _NOTHING
    return any_equal if operator == "in" else {"type": "not", "filters": [any_equal]}


def _key(path: str, before: str = _VALUE) -> str:
    if path in ("id", "content"):
        return "$source_id" if path == "id" else "$content"
    if path in ("blob", "embedding", "sparse_embedding", "score"):
        raise FilterError(f"documents cannot be filtered by '{path}'; use a field of meta")
    return f"{before}{path.removeprefix('meta.')}"


def _equal(path: str, value: Any) -> dict[str, Any]:
    if value is None:
        absent = {"type": "exists", "key": _key(path), "value": False}
        return {"type": "or", "filters": [{"type": "eq", "key": _key(path), "value": None}, absent]}
    plain = value.isoformat() if isinstance(value, datetime) else value
    return {"type": "eq", "key": _key(path), "value": plain}


def _ordered(path: str, kind: str, value: Any) -> dict[str, Any]:
    """Return the filter for `>` and the like. Dates are compared in seconds. A comparison with None finds nothing."""
    if value is None:
        return _NOTHING
    if isinstance(value, (str, datetime)):
        if (seconds := _seconds(value)) is None:
            raise FilterError("Strings are only comparable if they are ISO formatted dates.")
        return {"type": kind, "key": _key(path, _TIME), "value": seconds}
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FilterError(f"Filter value can't be of type {type(value)} using operators '>', '>=', '<', '<='")
    return {"type": kind, "key": _key(path), "value": value}
