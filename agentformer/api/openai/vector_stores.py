"""Endpoints for vector stores (namespaces whose documents can be searched), their files, and the search in them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from typing import Any

from flask import Response

from agentformer.access.permissions import Grant
from agentformer.api.openai import models
from agentformer.api.openai.files import upload_slot
from agentformer.api.openai.lookup import (
    NAMESPACE_HEADER,
    RECORD,
    copies,
    creation_entry,
    digest_of,
    documents,
    file_id,
    find_store,
    no_file,
    no_store,
    page,
    page_json,
    reachable,
    record_of,
    request_namespace,
    seconds,
    store_documents,
    store_id,
)
from agentformer.api.operations import Router, Service
from agentformer.api.request import check_length
from agentformer.api.response import reply
from agentformer.errors import Conflict, Forbidden, NotFound
from agentformer.memory.backends import all_entries
from agentformer.rag.uploads import Origin, unchanged
from agentformer.records import fields
from agentformer.records.filters import parse
from agentformer.settings import Settings
from agentformer.types import FINDABLE, UNSEARCHED_KIND, Hit, MemoryEntry, Scope, new_id

_STORES = "/v1/vector_stores"
_STORE = f"{_STORES}/{{vector_store_id}}"
_FILES = f"{_STORE}/files"
_FILE = f"{_FILES}/{{file_id}}"
_NUMBER = 12  # characters of a number after a name

router = Router("openai vector stores")


@router.route(
    "POST",
    _STORES,
    "rag_upload unless stored",
    {200: models.VectorStore},
    headers=NAMESPACE_HEADER,
    around=upload_slot,
    errors=(404, 409, 429, 507),
)
def create(service: Service, grant: Grant, body: models.NewStore) -> Response:
    """Create a vector store, and add files to it.

    The name of the vector store is also the name of its namespace. If there is a vector store of this name already, a
    number is added to the name of the namespace. Without a name, the namespace gets a new name. A key that is limited
    to namespaces can create only the vector stores of these namespaces."""
    request_namespace(grant)  # checks the header
    for id in body.file_ids or ():
        copies(service, grant, id)  # before anything is stored
    values = {"name": body.name or "", "metadata": body.metadata or {}, "description": body.description or ""}
    namespace = _new_store(service, grant, values)
    for id in body.file_ids or ():
        _add(service, grant, namespace, id, None)
    return reply(_store_json(service, namespace))


@router.route("GET", _STORES, "document", {200: models.VectorStores})
def list_stores(service: Service, grant: Grant, query: models.PageQuery) -> Response:
    """List the vector stores that the key may use.

    A vector store is a namespace that contains documents, or that was created as a vector store.
    """
    created = ((namespace, creation_entry(service, namespace)) for namespace in reachable(service, grant))
    stores = sorted((creation.id, namespace) for namespace, creation in created if creation is not None)
    items, more = page([namespace for _, namespace in stores], query, store_id)
    return reply(page_json([_store_json(service, namespace) for namespace in items], more=more))


@router.route("GET", _STORE, "document", {200: models.VectorStore})
def retrieve(service: Service, grant: Grant, vector_store_id: str) -> Response:
    """Return a vector store."""
    return reply(_store_json(service, find_store(service, grant, vector_store_id)))


@router.route("POST", _STORE, "rag_upload unless stored", {200: models.VectorStore}, errors=(409, 507))
def update(service: Service, grant: Grant, body: models.StoreChanges, vector_store_id: str) -> Response:
    """Change the name or the metadata of a vector store. Its id and its namespace stay the same."""
    namespace = find_store(service, grant, vector_store_id)
    record = record_of(service, namespace)
    former = {"name": namespace, "metadata": {}, "description": ""} if record is None else record.metadata
    given = {"name": body.name, "metadata": body.metadata}
    values = {**former, **{name: value for name, value in given.items() if value is not None}}
    if record is not None:
        service.af.backend.update(record.id, {"metadata": values}, record.version)
    else:
        _store_record(service, namespace, values)
    return reply(_store_json(service, namespace))


@router.route("DELETE", _STORE, "memory_delete", {200: models.Deleted}, errors=(409,))
def delete(service: Service, grant: Grant, vector_store_id: str) -> Response:
    """Delete a vector store. The files and the memories of the namespace stay."""
    namespace = find_store(service, grant, vector_store_id)
    for document in store_documents(service, namespace):
        _remove(service, grant, document)
    if (record := record_of(service, namespace)) is not None:
        service.af.backend.remove([record.id])
    return reply({"id": vector_store_id, "object": "vector_store.deleted", "deleted": True})


@router.route(
    "POST",
    _FILES,
    "rag_upload unless stored",
    {200: models.StoreFile},
    headers=NAMESPACE_HEADER,
    around=upload_slot,
    errors=(409, 429, 507),
)
def add_file(service: Service, grant: Grant, body: models.AddedFile, vector_store_id: str) -> Response:
    """Add a file to a vector store, so that searches in it find the text of the file.

    The response is sent after the file was read. If it has no usable text, the status is `failed`, and `last_error`
    explains why. If the file is in the vector store already, only its attributes are changed.
    """
    request_namespace(grant)  # checks the header
    namespace = find_store(service, grant, vector_store_id)
    document = _add(service, grant, namespace, body.file_id, body.attributes)
    return reply(_file_json(service.af.settings, document))


@router.route("GET", _FILES, "document", {200: models.StoreFiles})
def list_files(service: Service, grant: Grant, query: models.StoreFilesQuery, vector_store_id: str) -> Response:
    """List the files of a vector store."""
    namespace = find_store(service, grant, vector_store_id)
    found = {file_id(entry): entry for entry in store_documents(service, namespace)}
    items = [entry for entry in found.values() if query.filter in (None, _status(entry))]
    shown, more = page(items, query, file_id)
    return reply(page_json([_file_json(service.af.settings, entry) for entry in shown], more=more))


@router.route("GET", _FILE, "document", {200: models.StoreFile})
def retrieve_file(service: Service, grant: Grant, vector_store_id: str, file_id: str) -> Response:
    """Return the state of a file in a vector store."""
    return reply(_file_json(service.af.settings, _find(service, grant, vector_store_id, file_id)))


@router.route(
    "POST", _FILE, "rag_upload unless stored", {200: models.StoreFile}, around=upload_slot, errors=(409, 429, 507)
)
def update_file(
    service: Service, grant: Grant, body: models.FileChanges, vector_store_id: str, file_id: str
) -> Response:
    """Replace the attributes of a file in a vector store."""
    document = _find(service, grant, vector_store_id, file_id)
    changed = _add(service, grant, document.namespace, file_id, body.attributes or {})
    return reply(_file_json(service.af.settings, changed))


@router.route("DELETE", _FILE, "memory_delete", {200: models.Deleted}, errors=(409,))
def remove_file(service: Service, grant: Grant, vector_store_id: str, file_id: str) -> Response:
    """Remove a file from a vector store. The file itself stays."""
    namespace = find_store(service, grant, vector_store_id)
    found = store_documents(service, namespace, digest_of(file_id))
    if not found:
        raise no_file(file_id)
    for document in found:
        _remove(service, grant, document)
    return reply({"id": file_id, "object": "vector_store.file.deleted", "deleted": True})


@router.route("GET", f"{_FILE}/content", "document text", {200: models.FileText})
def file_content(service: Service, grant: Grant, vector_store_id: str, file_id: str) -> Response:
    """Return the text of a file, one part for each page."""
    document = _find(service, grant, vector_store_id, file_id)
    scope = Scope(document.namespace, kinds=("page",), document_id=document.id)
    parts = [{"type": "text", "text": entry.content} for entry in all_entries(service.af.backend, scope)]
    return reply({"object": "vector_store.file_content.page", "data": parts, "has_more": False, "next_page": None})


@router.route("POST", f"{_STORE}/search", "rag_query", {200: models.SearchResults}, errors=(409,), uses_model=True)
def search(service: Service, grant: Grant, body: models.StoreSearch, vector_store_id: str) -> Response:
    """Search the text of the files in a vector store.

    The results are passages, best first. With several queries, a passage has the score of its best query.
    """
    namespace = find_store(service, grant, vector_store_id)
    queries = [body.query] if isinstance(body.query, str) else body.query
    for query in queries:
        check_length("query", query, service.af.settings)
    least = body.ranking_options.score_threshold if body.ranking_options else 0.0
    where = service.removals.hide(parse(body.filters, "filters"), namespace)
    scope: dict[str, Any] = {"namespace": namespace, "kinds": ("chunk",), "where": where}
    best: dict[str, Hit] = {}
    for query in queries:
        for hit in service.af.memory.search(query, limit=body.max_num_results, min_score=least, **scope):
            if hit.entry.id not in best or best[hit.entry.id].score < hit.score:
                best[hit.entry.id] = hit
    hits = sorted(best.values(), key=lambda hit: -hit.score)[: body.max_num_results]
    found = {entry.id: entry for entry in service.af.backend.get([*{_document_id(hit): None for hit in hits}])}
    return reply(
        {
            "object": "vector_store.search_results.page",
            "search_query": queries,
            "data": [_result_json(hit, found[_document_id(hit)]) for hit in hits if _document_id(hit) in found],
            "has_more": False,
            "next_page": None,
        }
    )


def _new_store(service: Service, grant: Grant, values: dict[str, Any]) -> str:
    """Store the record of a new vector store, and return its namespace. `values` has its name and metadata. The
    namespace has the name of the vector store, or a random name if the vector store has no name. If a vector store has
    this namespace already, a number is added to the name. Raises `Forbidden` if the key may not use the namespace.
    Raises `Conflict` if a number must be added, and the key may not use the namespace with this number."""
    name = values["name"].strip()
    if not name and grant.namespaces:
        raise Forbidden(f"this key may use only the namespaces {', '.join(grant.namespaces)}; give one of them as name")
    first = grant.namespace(fields.name("name", name)) if name else f"store-{secrets.token_hex(6)}"
    for number in itertools.count(1):
        namespace = first if number == 1 else f"{first[: fields.MAX_NAME - _NUMBER]} ({number})"
        if not grant.reaches(namespace):
            raise Conflict(
                f"the vector store {store_id(first)} exists already; another one would need another namespace, which "
                "this key may not use"
            )
        try:
            if creation_entry(service, namespace) is None:
                _store_record(service, namespace, {**values, "name": name})
                return namespace
        except Conflict:  # another client has created it in the meantime
            continue
    raise AssertionError("the loop ends only with a free name")


def _store_record(service: Service, namespace: str, values: dict[str, Any]) -> None:
    """Store the name and the metadata of a vector store. Raises `Conflict` if another client has created the vector
    store already."""
    scope = Scope(namespace, source_type=RECORD)
    others = [entry.id for entry in all_entries(service.af.backend, scope)]
    if record_of(service, namespace) is not None:
        raise Conflict(f"another client has created the vector store {store_id(namespace)} in the meantime; try again")
    service.af.backend.store([_record(namespace, values)], check=unchanged([(scope, others)]))


def _record(namespace: str, values: dict[str, Any]) -> MemoryEntry:
    return MemoryEntry(
        id=new_id(),
        content=values["name"] or namespace,
        kind=UNSEARCHED_KIND,
        namespace=namespace,
        metadata=values,
        source_type=RECORD,
        source_id=RECORD,
    )


def _store_json(service: Service, namespace: str) -> dict[str, Any]:
    creation, record = creation_entry(service, namespace), record_of(service, namespace)
    if creation is None:  # deleted by another client in the meantime
        raise no_store(store_id(namespace))
    documents = store_documents(service, namespace)
    completed = sum(document.metadata["status"] in FINDABLE for document in documents)
    return {
        "id": store_id(namespace),
        "object": "vector_store",
        "created_at": seconds(creation),
        "name": record.metadata["name"] if record else namespace,
        "usage_bytes": sum(document.metadata["bytes"] for document in documents),
        "file_counts": {
            "in_progress": 0,
            "completed": completed,
            "failed": len(documents) - completed,
            "cancelled": 0,
            "total": len(documents),
        },
        "status": "completed",
        "expires_after": None,
        "expires_at": None,
        "last_active_at": seconds(documents[-1] if documents else creation),
        "metadata": record.metadata["metadata"] if record else {},
    }


def _add(service: Service, grant: Grant, namespace: str, id: str, attributes: Mapping[str, Any] | None) -> MemoryEntry:
    """Read a file and store its text in the namespace of a vector store, and return its document. If the vector store
    contains the file already and `attributes` is None, the file keeps its attributes. Raises `NotFound` if there is no
    such file, or its bytes are missing."""
    digest = digest_of(id)
    present = next(iter(store_documents(service, namespace, digest)), None)
    source = present or copies(service, grant, id)[0]
    name, place = source.metadata["name"], source.metadata if present else {}
    origin = Origin(place.get("origin", ""), place.get("root", ""))
    try:
        data = service.af.originals.get(digest)
    except NotFound:
        raise NotFound(f"the bytes of the file {id} are not stored; upload the file again") from None
    more = {"metadata": attributes, "origin": origin, "on_conflict": "replace" if present else "keep-both"}
    more["user_id"] = source.user_id
    service.af.rag.upload(data, name=name, namespace=namespace, **more)  # type: ignore[arg-type]
    stored = store_documents(service, namespace, digest)
    if not stored:  # removed by another client in the meantime
        raise no_file(id)
    return stored[0]


def _remove(service: Service, grant: Grant, document: MemoryEntry) -> None:
    """Remove the text of a document from its vector store. The file itself stays: if no other document belongs to this
    file, the document is kept without its text."""
    digest = document.metadata["sha256"]
    others = (each for name in reachable(service, grant) for each in documents(service, name, digest))
    if any(other.id != document.id for other in others):
        service.af.backend.remove([document.id])
        service.af.originals.sweep()
        return
    try:
        service.af.rag.forget_text(document)
    except NotFound:  # its file was never stored, because it has no usable text
        service.af.backend.remove([document.id])


def _find(service: Service, grant: Grant, vector_store_id: str, id: str) -> MemoryEntry:
    namespace = find_store(service, grant, vector_store_id)
    if found := store_documents(service, namespace, digest_of(id)):
        return found[0]
    raise no_file(id)


def _status(document: MemoryEntry) -> str:
    return "completed" if document.metadata["status"] in FINDABLE else "failed"


def _file_json(settings: Settings, document: MemoryEntry) -> dict[str, Any]:
    failed = _status(document) == "failed"
    limits = {"max_chunk_size_tokens": settings.chunk_tokens, "chunk_overlap_tokens": settings.chunk_overlap}
    return {
        "id": file_id(document),
        "object": "vector_store.file",
        "created_at": seconds(document),
        "vector_store_id": store_id(document.namespace),
        "status": _status(document),
        "last_error": {"code": "invalid_file", "message": document.metadata["reason"]} if failed else None,
        "usage_bytes": document.metadata["bytes"],
        "attributes": document.metadata["given"],
        "chunking_strategy": {"type": "static", "static": limits},
    }


def _document_id(hit: Hit) -> str:
    return hit.entry.source.document_id if hit.entry.source else ""


def _result_json(hit: Hit, document: MemoryEntry) -> dict[str, Any]:
    return {
        "file_id": file_id(document),
        "filename": document.metadata["name"],
        "score": hit.score,
        "attributes": document.metadata["given"],
        "content": [{"type": "text", "text": hit.entry.content}],
    }
